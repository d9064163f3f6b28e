"""The lines of `status.scaling`, and the limits of its parts and figures. Pure.

A line replaces an object, because `kubectl describe` prints a dozen lines for each object of a list. Anybody
who may write a status may write other lines, so the readers skip a line of another form.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from millrace_operator.api.conditions import parse_time
from millrace_operator.api.quantities import parse_number

NUM_CHANGES = 5
NUM_CANDIDATES = 16
NUM_REJECTED = 32
NAME_LENGTH = 64
REASON_LENGTH = 256
WORDS_LENGTH = 1024
LINE_LENGTH = 512
MESSAGE_LENGTH = 200
"""Of a change. The autoscaler's record has the whole message."""
# Limits that the operator and the readers of status compare figures with.
SPENT_SECONDS = 120.0
"""The burn beyond the allowed one, summed over seconds, that asks for one more replica.

If all requests miss an objective at P95, the sum reaches it after four ticks of 2 s.
"""
FUTILE_STEPS = 2
"""So many added replicas may leave as many requests late as before. Then the autoscaler adds no more."""
FLAPS_BORNE = 1
"""So many counts may fall too early. After more of them a lower count must have been enough for longer."""
MIN_LATENCY_SAMPLES = 3.0
"""A quantile q needs so many times 1/(1-q) requests; fewer say nothing about it."""
TRIED = "only what replicas tried before the first request is known"
"""The text of `learning` before the first request."""
Json = dict[str, Any]
UNKNOWN = "?"
LOAD = ("arrivalsPerSecond", "promptTokens", "generationTokens", "perReplicaPerSecond")
"""The load's figures that a change keeps. Their difference to those of the change before is its cause."""
_CHANGE = re.compile(
    r"(?P<at>\S+) (?P<from>\d{1,9}) -> (?P<to>\d{1,9}) (?P<reason>\S+) (?P<binding>\S+)"
    r"(?: \((?P<arrivalsPerSecond>\S+) req/s of (?P<promptTokens>\S+) \+ (?P<generationTokens>\S+) tokens, "
    r"(?P<perReplicaPerSecond>\S+) a replica\))?(?:: (?P<message>.*))?"
)
_OBJECTIVE = re.compile(
    r"P(?P<percentile>\d{1,3}) (?P<metric>\w+) (?P<state>\w+) since (?P<since>\S+): (?P<measuredSeconds>\S+) "
    r"of (?P<targetSeconds>\S+) s, (?P<samples>\S+) requests, burn (?P<burnRate>\S+), spent "
    r"(?P<spentSeconds>\S+) s(?:; (?P<doubt>.*))?"
)


def pick_load(evidence: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the known figures of the load, as the field of a change; nothing if none is known."""
    known = {name: evidence[name] for name in LOAD if name in evidence} if evidence else {}
    return {"load": known} if known else {}


def render_change(change: Json) -> str:
    """Return a change of the count as a line."""
    load = change.get("load") or {}
    rate, prompt, answer, each = (load.get(name, UNKNOWN) for name in LOAD)
    figures = f" ({rate} req/s of {prompt} + {answer} tokens, {each} a replica)" if load else ""
    words = " ".join(change["message"].split())[:MESSAGE_LENGTH]
    reason, binding = (change[name].replace(" ", "_") or UNKNOWN for name in ("reason", "binding"))
    head = f"{change['at']} {change['from']} -> {change['to']} {reason} {binding}{figures}"
    return (f"{head}: {words}" if words else head)[:LINE_LENGTH]


def read_changes(lines: Iterable[str]) -> list[Json]:
    """Return the changes in these lines, in their order: the newest last."""
    return [_read_change(found) for line in lines if (found := _CHANGE.fullmatch(line)) and _is_dated(found)]


def _is_dated(found: re.Match[str]) -> bool:
    return parse_time(found["at"]) is not None


def _read_change(found: re.Match[str]) -> Json:
    load = {name: found[name] for name in LOAD if parse_number(found[name]) is not None}
    counts = {name: int(found[name]) for name in ("from", "to")}
    binding = "" if found["binding"] == UNKNOWN else found["binding"]
    words = {"reason": found["reason"], "binding": binding, "message": found["message"] or ""}
    return {"at": found["at"], **counts, **words, **pick_load(load)}


def render_objective(objective: Json, doubt: str | None) -> str:
    """Return an objective and its measurements as a line. `doubt` says why they are unknown, if they are."""
    measured, target, samples, burn, spent = (
        objective.get(name, UNKNOWN)
        for name in ("measuredSeconds", "targetSeconds", "samples", "burnRate", "spentSeconds")
    )
    head = f"P{objective['percentile']} {objective['metric']} {objective['state']} since {objective['since']}"
    figures = f"{measured} of {target} s, {samples} requests, burn {burn}, spent {spent} s"
    words = " ".join((doubt or "").split())
    return f"{head}: {figures}{f'; {words}' if words else ''}"[:LINE_LENGTH]


def read_objectives(lines: Iterable[str]) -> list[Json]:
    """Return the objectives in these lines, without their unknown figures."""
    return [_read_objective(found) for line in lines if (found := _OBJECTIVE.fullmatch(line))]


def _read_objective(found: re.Match[str]) -> Json:
    texts = {name: text for name, text in found.groupdict().items() if text not in (None, UNKNOWN)}
    whole = {name: int(texts[name]) for name in ("percentile", "samples") if texts.get(name, "").isdecimal()}
    return {**{name: text for name, text in texts.items() if name != "samples"}, **whole}
