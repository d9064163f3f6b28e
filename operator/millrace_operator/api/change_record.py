"""The changes of a count: as lines of `status.scaling.lastChanges`, and many more of them as one text.

The operator writes both, the plugin reads both. The lines are of the newest changes alone: every watcher of
the service receives its status again and again, so the status has to be small.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

from millrace_operator.api.conditions import parse_time
from millrace_operator.api.quantities import parse_number, render_number
from millrace_operator.api.status_lines import LINE_LENGTH, NAME_LENGTH, REASON_LENGTH, UNKNOWN, WORDS_LENGTH
from millrace_runtime import contract

Change = dict[str, Any]
NUM_CHANGES = 5
"""In status."""
MESSAGE_LENGTH = 200
"""Of a change. The autoscaler's record has the whole message."""
KEY = "changes"
"""The text's key in the annotation."""
NUM_RECORDED = 200
RECORD_BYTES = 32_000
"""As JSON. If the text would be longer, the oldest changes lose their messages."""
LONGEST_READ = 8 * RECORD_BYTES
LENGTHS = {"reason": NAME_LENGTH, "binding": REASON_LENGTH, "message": WORDS_LENGTH}
LOAD = ("arrivalsPerSecond", "promptTokens", "generationTokens", "perReplicaPerSecond")
"""The load's figures that a change keeps. Their difference to those of the change before is its cause."""
_CHANGE = re.compile(
    r"(?P<at>\S+) (?P<from>\d{1,9}) -> (?P<to>\d{1,9}) (?P<reason>\S+) (?P<binding>\S+)"
    r"(?: \((?P<arrivalsPerSecond>\S+) req/s of (?P<promptTokens>\S+) \+ (?P<generationTokens>\S+) tokens, "
    r"(?P<perReplicaPerSecond>\S+) a replica\))?(?:: (?P<message>.*))?"
)


def pick_load(evidence: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the known figures of the load, as the field of a change; nothing if none is known."""
    known = {name: evidence[name] for name in LOAD if name in evidence} if evidence else {}
    return {"load": known} if known else {}


def render_change_line(change: Change) -> str:
    """Return a change of the count as a line."""
    load = change.get("load") or {}
    rate, prompt, answer, each = (load.get(name, UNKNOWN) for name in LOAD)
    figures = f" ({rate} req/s of {prompt} + {answer} tokens, {each} a replica)" if load else ""
    words = " ".join(change["message"].split())[:MESSAGE_LENGTH]
    reason, binding = (change[name].replace(" ", "_") or UNKNOWN for name in ("reason", "binding"))
    head = f"{change['at']} {change['from']} -> {change['to']} {reason} {binding}{figures}"
    return (f"{head}: {words}" if words else head)[:LINE_LENGTH]


def read_change_lines(lines: Iterable[str]) -> list[Change]:
    """Return the changes in these lines, in their order: the newest last."""
    return [_read_change(found) for line in lines if (found := _CHANGE.fullmatch(line)) and _has_date(found)]


def _has_date(found: re.Match[str]) -> bool:
    return parse_time(found["at"]) is not None


def _read_change(found: re.Match[str]) -> Change:
    load = {name: found[name] for name in LOAD if parse_number(found[name]) is not None}
    counts = {name: int(found[name]) for name in ("from", "to")}
    binding = "" if found["binding"] == UNKNOWN else found["binding"]
    words = {"reason": found["reason"], "binding": binding, "message": found["message"] or ""}
    return {"at": found["at"], **counts, **words, **pick_load(load)}


def find_newest(records: Iterable[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return the annotation that was written last among these revisions' records; None without one.

    Anybody may have written it.
    """
    texts = (one["metadata"].get("annotations", {}).get(contract.ANNOTATION_LEARNED, "") for one in records)
    found = [known for text in texts if (known := _read_annotation(text)) is not None]
    return max(found, key=lambda known: known["at"], default=None)


def _read_annotation(text: Any) -> dict[str, Any] | None:
    try:
        known = json.loads(text)
    except (ValueError, TypeError, RecursionError):
        return None
    return known if isinstance(known, dict) and isinstance(known.get("at"), str) else None


def merge_changes(old: Sequence[Change], new: Sequence[Change]) -> list[Change]:
    """Return the changes of `old` and `new` without repetition, the newest last. A change that is in both
    has the message from `new`.
    """
    known = {identify(change) for change in new}
    older = [change for change in old if identify(change) not in known]
    return sorted([*older, *new], key=lambda change: str(change["at"]))[-NUM_RECORDED:]


def identify(change: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the key of a change. It is unique, because no count changes twice in a second."""
    return change["at"], change["from"], change["to"]


def render_changes(changes: Sequence[Change]) -> str:
    """Return the text, the newest change last. It never has more than RECORD_BYTES."""
    newest_first = list(reversed(changes[-NUM_RECORDED:]))
    whole = [_render(change) for change in newest_first]
    bare = [_render({**change, "message": ""}) for change in newest_first]
    words = [_size(line) - _size(short) for line, short in zip(whole, bare, strict=True)]
    num_lines = _count_fitting(map(_size, bare), RECORD_BYTES - sum(words[:1]))
    num_whole = _count_fitting(words[:num_lines], RECORD_BYTES - sum(map(_size, bare[:num_lines])))
    lines = [*whole[:num_whole], *bare[num_whole:num_lines]]
    return "".join(f"{line}\n" for line in reversed(lines))


def _count_fitting(sizes: Iterable[int], room: int) -> int:
    """Return how many of these sizes fit into the room, from the first on."""
    return sum(total <= room for total in accumulate(sizes))


def _render(change: Change) -> str:
    words = (str(change.get(name, ""))[:length] for name, length in LENGTHS.items())
    load = change.get("load") or {}
    figures = [[parse_number(load.get(name)) for name in LOAD]] if load else []
    return json.dumps([change["at"], change["from"], change["to"], *words, *figures], ensure_ascii=False)


def _size(line: str) -> int:
    """Return how many bytes a line takes in a request, which escapes quotes and non-ASCII characters."""
    return len(json.dumps(f"{line}\n")) - 2


def read_changes(text: str) -> list[Change]:
    """Return the changes of a text. A line that is no change is left out: anybody may have written it."""
    return list(_read_lines(text[-LONGEST_READ:].split("\n")))[-NUM_RECORDED:]


def _read_lines(lines: Sequence[str]) -> Iterator[Change]:
    for line in lines:
        try:
            at, before, after, *others = json.loads(line)
            words, load = others[: len(LENGTHS)], _read_load(*others[len(LENGTHS) :])
            is_change = _is_time(at) and _is_count(before) and _is_count(after) and _are_words(words)
        except (ValueError, TypeError, RecursionError, OverflowError):
            continue
        if is_change:
            yield {"at": at, "from": before, "to": after, **dict(zip(LENGTHS, words, strict=True)), **load}


def _read_load(figures: Sequence[float | None] = ()) -> dict[str, Any]:
    """Return the load of a line; nothing without one. Raises TypeError or ValueError for other figures."""
    if not figures:
        return {}
    texts = {name: render_number(value) for name, value in zip(LOAD, figures, strict=True)}
    return pick_load({name: text for name, text in texts.items() if text is not None})


def _is_time(value: Any) -> bool:
    """Whether the value is a time as the API writes it. Raises ValueError for a text that is no time."""
    return isinstance(value, str) and value.endswith("Z") and parse_time(value) is not None


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31


def _are_words(values: Sequence[Any]) -> bool:
    """Whether a terminal can show these values. Control characters could do anything there."""
    return len(values) == len(LENGTHS) and all(
        isinstance(value, str) and value.isprintable() and len(value) <= WORDS_LENGTH for value in values
    )
