"""The screen of `status`: a service's desired and present state, the obstacles, and the remedies.
Pure.
"""

import textwrap
from collections.abc import Iterable, Iterator

from millrace_kubectl.facts import Facts
from millrace_kubectl.kubectl import Obj
from millrace_kubectl.remedies import find_remedies
from millrace_kubectl.wording import NOTHING, OBEY, UNSEEN, WAIT, describe_moment, shorten, show_count
from millrace_operator.api.conditions import Reason, parse_time

WIDTH = 110
"""Columns: a longer text continues on the next line, indented."""
GOOD = {"Ready": "True", "Progressing": "False", "Degraded": "False"}
"""The good status of each condition; True for the others."""
WORDS_LENGTH = 400
"""The decision's message is cut to this; `explain -v` shows all of it."""


def render_screen(facts: Facts) -> list[str]:
    """Return the lines."""
    parts = [
        (facts.name, describe_phase(facts)),
        *(("WANTED", text) for text in _describe_wanted(facts)),
        *(("THERE", text) for text in _describe_there(facts)),
        *(("ROLLOUT", text) for text in _describe_rollout(facts)),
        *(("IN THE WAY", text) for text in find_obstacles(facts) or ["nothing"]),
        *(("DO", text) for text in _list_remedies(facts)),
    ]
    width = max(len(label) for label, _ in parts) + 2
    lines, previous = [], ""
    for label, text in parts:
        beside = "" if label == previous else label
        lines += textwrap.wrap(
            text, WIDTH, initial_indent=f"{beside:<{width}}", subsequent_indent=" " * width,
            break_on_hyphens=False, break_long_words=False,
        )  # fmt: skip
        previous = label
    return [*lines, "", *_list_conditions(facts)] if facts.status else lines


def describe_phase(facts: Facts) -> str:
    """Return the gravest state in a word, as Argo CD shows it, and how many replicas answer."""
    if not facts.status:
        return "NOT SEEN by an operator yet"
    past = "OLD, was " if facts.is_old else ""
    return f"{past}{_name_phase(facts)}: {_describe_counts(facts)}"


def _describe_counts(facts: Facts) -> str:
    if facts.is_at_rest and not facts.ready:
        return "the next request starts a replica"
    if facts.desired is None and not facts.ready:
        return "no count is decided yet"
    if facts.desired is not None and facts.ready is not None and facts.ready > facts.desired:
        return f"{facts.ready} replicas answer, and {facts.desired} {_verb(facts.desired)} wanted"
    return f"{show_count(facts.ready)} of {show_count(facts.desired)} replicas answer"


def _verb(count: int) -> str:
    return "is" if count == 1 else "are"


def _name_phase(facts: Facts) -> str:
    return next(name for name, is_so in _judge_phases(facts) if is_so)


def _judge_phases(facts: Facts) -> Iterator[tuple[str, bool]]:
    """Yield each phase, the gravest first, and whether the service is in it."""
    progress, is_ready = facts.condition("Progressing"), facts.is_true("Ready")
    reason, is_first = progress.get("reason"), not facts.status.get("currentRevision")
    yield "DEGRADED", facts.is_true("Degraded")
    yield "WAITING for its owner", reason == Reason.AWAITING_PROMOTION
    yield "IN CANARY", reason == Reason.CANARY
    yield "AT ZERO", facts.condition("Ready").get("reason") == Reason.SCALED_TO_ZERO
    yield "ROLLING OUT", reason == Reason.ROLLING_OUT and not is_first
    yield "WAKING", facts.is_waking
    yield "STARTING", not is_ready
    yield "REPLACING", reason == Reason.REPLACING
    yield "SCALING", progress.get("status") == "True"
    yield "READY", True


def _list_remedies(facts: Facts) -> Iterator[str]:
    """Yield what to do. A command is on its own line, to be copied."""
    for text in list(find_remedies(facts)) or [find_patience(facts)]:
        yield from text.replace(": kubectl ", ":\nkubectl ").split("\n")


def find_patience(facts: Facts) -> str:
    """Return what to do without a remedy."""
    if not facts.is_seen:
        return UNSEEN
    if facts.is_true("Progressing"):
        return WAIT
    return OBEY if find_obstacles(facts) else NOTHING


def _describe_wanted(facts: Facts) -> Iterator[str]:
    if not facts.status:
        return
    if facts.desired is None and not facts.ready:
        return
    unit = "replica" if facts.desired == 1 else "replicas"
    yield f"{show_count(facts.desired)} {unit}, {_describe_decider(facts)}"
    if facts.mode != "External" and facts.pin is None and facts.scaling.get("message"):
        yield shorten(facts.scaling["message"], WORDS_LENGTH)
    model = facts.status.get("model") or {}
    revision = facts.status.get("updateRevision")
    if revision and "rejectedRevision" in facts.status:  # the model is of the revision that serves
        yield f"revision {revision}, which was given up"
    elif revision:
        yield f"revision {revision} of model {model.get('uri', '?')}"


def _describe_decider(facts: Facts) -> str:
    if facts.pin is not None:
        until = describe_moment(facts.pin.until, facts.now)
        return f"pinned at {facts.pin.replicas} until {until}"
    if facts.mode == "External":
        return "as spec.replicas says"
    least = facts.least if facts.mode == "DryRun" else facts.spec.get("minReplicas", 1)
    bounds = f"between {least} and {facts.most}"
    if facts.mode == "DryRun":
        return f"as before: mode DryRun only shows what the autoscaler would choose {bounds}"
    return f"chosen by the autoscaler {bounds} ({facts.reason or 'no decision yet'})"


def _describe_there(facts: Facts) -> Iterator[str]:
    if not facts.status or (facts.desired is None and not facts.ready):
        return
    current, others = facts.status.get("currentRevision"), facts.num_unready
    served = (
        "no revision has served completely yet"
        if current is None
        else f"revision {current} served completely last"
    )
    beside = "" if not others else f", {others} that {'does' if others == 1 else 'do'} not"
    yield f"{show_count(facts.ready)} that answer{beside}; {served}"
    if current and "rejectedRevision" in facts.status:
        yield f"revision {current} is of model {(facts.status.get('model') or {}).get('uri', '?')}"
    url = facts.status.get("url")
    if url:
        yield f"{url}, model {(facts.status.get('model') or {}).get('servedName', facts.name)}"


def _describe_rollout(facts: Facts) -> Iterator[str]:
    rollout, rejected = facts.status.get("rollout"), facts.status.get("rejectedRevision")
    if rejected:
        why = rejected.get("reason", "DeadlineExceeded")
        yield f"revision {rejected['revision']} was given up {_ago(facts, rejected['at'])}: {why}"
    if rollout:
        began, last = (_ago(facts, rollout.get(name)) for name in ("startedAt", "progressedAt"))
        yield f"revision {rollout['revision']} began {began}, by {rollout['method']}; last progress {last}"
        yield from _describe_canary(facts, rollout.get("canary"))


def _describe_canary(facts: Facts, canary: Obj | None) -> Iterator[str]:
    if not canary:
        return
    unit = "replica" if canary["replicas"] == 1 else "replicas"
    if canary.get("promotedAt"):
        yield f"its canary of {canary['replicas']} {unit} was promoted {_ago(facts, canary['promotedAt'])}"
    elif canary.get("readyAt"):
        yield f"its canary of {canary['replicas']} {unit} began to serve {_ago(facts, canary['readyAt'])}"
    else:
        yield f"its canary of {canary['replicas']} {unit} does not serve yet"


def _ago(facts: Facts, text: str | None) -> str:
    age = facts.age(text)
    return "an unknown time" if age is None else f"{age} ago"


def find_obstacles(facts: Facts) -> list[str]:
    """Return the bad conditions with the operator's messages, the gravest first and each once."""
    if not facts.status:
        return ["no operator has written a status"]
    found: dict[str, str] = {}
    for one in sorted(facts.status.get("conditions", []), key=lambda one: str(one["type"]) != "Degraded"):
        is_good = one["status"] == GOOD.get(one["type"], "True")
        is_known = any(one.get("message", "").rstrip(".") in other for other in found)
        is_past = facts.is_refused and one["type"] == "Progressing"
        if not (is_good or is_known or is_past or _is_harmless(one)):
            found[one.get("message", "")] = f"{_describe_state(facts, one)}, now {one['reason']}"
    found |= dict(_find_decisions(facts))
    unseen = [] if facts.is_seen else ["the operator has not seen the last edit"]
    if facts.silence is not None:
        unseen.append(f"{facts.silence}: all this was so then")
    elif facts.is_old:
        age = facts.age(facts.evidence["observedAt"])
        unseen.append(f"no operator has written its figures for {age}: all this was so then")
    return unseen + [f"{state}: {_leave_out(message, found)}" for message, state in found.items()]


def _find_decisions(facts: Facts) -> Iterator[tuple[str, str]]:
    """Yield a pin or mode by which a person keeps the count from the autoscaler's."""
    would = facts.scaling.get("recommendedReplicas")
    if facts.pin is not None and facts.is_pin_taken_up:
        yield facts.scaling["message"], f"Pinned for {_age(facts, facts.condition('Pinned'))}"
    elif facts.mode == "DryRun" and would not in (None, facts.desired):
        yield f"the autoscaler would have {would}", "DryRun"


def _leave_out(message: str, others: Iterable[str]) -> str:
    """Return the message without an end that repeats another message."""
    head, _, tail = message.partition("; ")
    is_repeated = any(tail.rstrip(".") in other for other in others if other != message)
    return head if tail and is_repeated else message


def _is_harmless(condition: Obj) -> bool:
    """Whether a condition is Unknown because nothing was measured yet, or reports a lapsed pin."""
    return bool(condition["status"] == "Unknown" or condition["reason"] == Reason.PIN_LAPSED)


def _describe_state(facts: Facts, condition: Obj) -> str:
    """Return for how long a condition has had its status. Its reason may be younger."""
    name = condition["type"] if condition["status"] == "True" else f"not {condition['type']}"
    return f"{name} for {_age(facts, condition)}"


def _age(facts: Facts, condition: Obj) -> str:
    return facts.age(condition.get("lastTransitionTime")) or "?"


def _list_conditions(facts: Facts) -> Iterator[str]:
    conditions = facts.status.get("conditions", [])
    yield f"{'CONDITION':<15}{'STATUS':<9}{'REASON':<20}SINCE"
    for one in conditions:
        at = parse_time(one.get("lastTransitionTime"))
        since = "?" if at is None else f"{describe_moment(at, facts.now)}, {_age(facts, one)} ago"
        yield f"{one['type']:<15}{one['status']:<9}{one['reason']:<20}{since}"
