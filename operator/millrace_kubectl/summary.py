"""The summary of `explain`: a service's state, its count with the reason, the last change, and remedies.
Pure.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from millrace_kubectl.count_changes import describe_causes
from millrace_kubectl.facts import Facts
from millrace_kubectl.kubectl import Obj
from millrace_kubectl.remedies import find_remedies, find_shortage
from millrace_kubectl.screen import find_patience
from millrace_kubectl.wording import (
    BINDINGS,
    ENOUGH_BY_MODEL,
    FUTILE,
    LIMITS,
    METRICS,
    UNMEASURED,
    describe_moment,
    describe_seconds,
    name_objective,
    shorten,
    show_apart,
    show_count,
    show_latency,
    show_rate,
)
from millrace_operator.api.annotations import Pin
from millrace_operator.api.conditions import parse_time
from millrace_operator.api.quantities import parse_number

TROUBLE_LENGTH = 240
"""A message names the pod, then the setting to correct, then what to write."""
OF_REQUESTS = frozenset({"scaleToZeroAfter", "activation"})
"""Bindings that follow from requests at the gateways, and not from the load."""
STATES = {"Missed": "MISSING", "Infeasible": "CAN'T MEET", "Unknown": "UNKNOWN", "Met": "MEETING"}
DAY_SECONDS = 86400.0
BUDGET_DAYS = 30
"""The period of an error budget, as in the chart's alerts."""


@dataclass(frozen=True)
class Summary:
    """The summary of a service."""

    state: str
    lines: tuple[str, ...]
    remedies: tuple[str, ...]


def summarise(facts: Facts) -> Summary:
    """Return the summary: at most seven lines."""
    state, remedies = describe_state(facts), tuple(find_remedies(facts))
    state = f"OLD, was {state}" if facts.is_old else state
    lines = [
        _head(facts, state),
        _describe_counts(facts),
        _describe_trouble(facts),
        _label("WHY", _describe_cause(facts)),
        _label("CHANGED", _describe_change(facts)),
        _label("DO", " | ".join(remedies or (find_patience(facts),))),
    ]
    return Summary(state, tuple(line for line in lines if line), remedies)


def _label(word: str, text: str | None) -> str | None:
    return f"{word} {text}" if text else None


def _head(facts: Facts, state: str) -> str:
    notes = []
    age = facts.age(facts.evidence.get("observedAt"))
    if age is not None and facts.mode != "External":
        notes.append(f"as of {age} ago")
    if facts.status and not facts.is_seen:
        notes.append("the operator has not seen the last edit")
    beside = f"({'; '.join(notes)})" if notes else ""
    return f"{facts.name} {state:<54} {beside}".rstrip()


def _describe_counts(facts: Facts) -> str | None:
    if not facts.status:
        return None
    want, have = map(show_count, (facts.desired, facts.ready))
    parts = [f"WANT {want} HAVE {have}", *_describe_replicas(facts)]
    if facts.mode == "DryRun" and facts.pin is None:
        would = facts.scaling.get("recommendedReplicas")
        parts.append(f"(DryRun: the autoscaler would have {show_count(would)})")
    if facts.condition("Progressing").get("reason") == "RollingOut" and facts.status.get("currentRevision"):
        parts.append("(a new revision rolls out)")
    return "  ".join(parts)


def _describe_replicas(facts: Facts) -> Iterator[str]:
    states = facts.evidence
    if states.get("starting"):
        age = facts.age(states.get("startingSince"))
        yield f"+{states['starting']} loading" + ("" if age is None else f" ({age})")
    if states.get("failing"):
        yield f"+{states['failing']} failing"
    if states.get("unschedulable"):
        yield f"+{states['unschedulable']} Pending: {_describe_shortage(facts)}"
    if facts.desired is not None and facts.ready is not None and facts.ready > facts.desired:
        yield f"-{facts.ready - facts.desired} to go"


def _describe_shortage(facts: Facts) -> str:
    shortage = find_shortage(facts)
    if shortage is not None:
        return f"no node has {shortage} free"
    words = facts.shortage_words
    return shorten(words) if words else "no node has room"


def _describe_trouble(facts: Facts) -> str | None:
    degraded = facts.condition("Degraded")
    is_shown = degraded.get("reason") == "Unschedulable" and facts.evidence.get("unschedulable")
    if degraded.get("status") != "True" or is_shown:
        return None
    return f"DEGRADED {degraded.get('reason')}: {shorten(degraded.get('message', ''), TROUBLE_LENGTH)}"


def _describe_cause(facts: Facts) -> str | None:
    if not facts.scaling:
        return None
    if facts.mode == "External":
        return _describe_writer(facts)
    if facts.pin is not None:
        return _describe_pin(facts, facts.pin)
    return _describe_blindness(facts) if facts.is_blind else _describe_decision(facts)


def _describe_decision(facts: Facts) -> str:
    words = BINDINGS.get(facts.binding)
    if facts.reason == "Starting":
        return UNMEASURED
    if words is None:
        return shorten(facts.scaling.get("message", facts.reason))
    if facts.binding in OF_REQUESTS:
        return words
    if facts.reason == "Learning":
        return f"{_describe_load(facts)}; {_describe_learning(facts)}"
    if facts.is_futile:
        words = FUTILE
    elif facts.binding == "forecast" and facts.waits_for_feedback:
        words = ENOUGH_BY_MODEL
    return "; ".join(part for part in (_describe_load(facts), _fill(facts, words)) if part)


def _fill(facts: Facts, words: str) -> str:
    return words.format(
        wanted="fewer" if facts.wanted is None and "would do" in words else show_count(facts.wanted),
        most=facts.most,
        least=facts.least,
        waiting=show_count(facts.evidence.get("waiting")),
        running=show_count(facts.evidence.get("running")),
    )


def _describe_writer(facts: Facts) -> str:
    text = f"mode External: spec.replicas is {show_count(facts.service['spec'].get('replicas'))}"
    writer = facts.find_writer()
    if writer is None:
        return text
    manager, age = writer
    who = "an HPA (kube-controller-manager)" if manager == "kube-controller-manager" else manager
    return f"{text}, written by {who}" + ("" if age is None else f" {age} ago")


def _describe_pin(facts: Facts, pin: Pin) -> str:
    until, now = describe_moment(pin.until, facts.now), describe_seconds(pin.until - facts.now)
    text = f"pinned at {pin.replicas} until {until}, {now} left"
    if not facts.is_pin_taken_up:
        return f"{text}; the operator has not taken it up yet"
    if facts.desired != pin.replicas:
        bound = "maxReplicas" if pin.replicas > facts.most else "minReplicas"
        is_zero = pin.replicas == 0 and facts.spec.get("minReplicas") == 0
        reason = "a pin holds at least one" if is_zero else f"{bound} makes it {show_count(facts.desired)}"
        text += f", and {reason}"
    would = facts.scaling.get("recommendedReplicas")
    return text if would is None else f"{text}; the autoscaler would have {would}"


def _describe_blindness(facts: Facts) -> str:
    named = facts.condition("ScalingActive").get("message", "").partition(" unknown: ")[2] or "signals"
    since = parse_time(facts.condition("ScalingActive").get("lastTransitionTime"))
    when = "" if since is None else f" since {describe_moment(since, facts.now)}"
    return f"held, never lower: {shorten(named)} unknown{when}"


def _describe_learning(facts: Facts) -> str:
    words = facts.evidence.get("learning")
    if facts.is_only_tried:
        return "learning from the first requests: only what replicas tried before is known"
    return f"learning how fast a replica is{f': {words}' if words else ''}"


def _describe_load(facts: Facts) -> str:
    rate, forecast = facts.figure("arrivalsPerSecond"), facts.figure("forecastPerSecond")
    carried, limit = facts.figure("perReplicaPerSecond"), facts.evidence.get("limit")
    text = "load unknown" if rate is None else f"{show_rate(rate)} req/s"
    if rate is not None and forecast is not None and forecast > 1.05 * rate:
        text += f", {show_rate(forecast)} expected"
    if carried is not None:
        text += f"; one replica carries {show_rate(carried)}"
        text += "" if limit is None else f" ({_describe_limit(str(limit))})"
        text += ", as tried before its first request" if facts.is_only_tried else ""
    return text


def _describe_limit(limit: str) -> str:
    """Return a replica's limit in words: "P95 TimeToFirstToken" is TTFT p95-bound."""
    percentile, _, metric = limit.partition(" ")
    if metric in METRICS:
        return f"{METRICS[metric]} {percentile.lower()}-bound"
    return LIMITS.get(limit, f"{limit}-bound")


def _describe_change(facts: Facts) -> str | None:
    """Return the last change in a few words, with its causes in the load since the one before."""
    changes = facts.changes
    if not changes:
        return None
    change, previous = changes[-1], changes[-2] if len(changes) > 1 else None
    at = parse_time(change["at"])
    moment = "?" if at is None else describe_moment(at, facts.now)
    by = change.get("binding") or change.get("reason", "")
    causes = describe_causes(change, previous)
    return f"{moment} {change['from']} -> {change['to']} {by}" + (f": {causes}" if causes else "")


def describe_state(facts: Facts) -> str:
    """Return the state of the service in one line, the worst objective first."""
    if not facts.status:
        return "NOT SEEN by an operator yet"
    if facts.ready == 0 or (facts.ready is None and not facts.status.get("currentRevision")):
        return _describe_absence(facts)
    for state in ("Missed", "Infeasible", "Unknown", "Met"):
        found = facts.objectives_in(state)
        if found:
            named = ", ".join(_describe_objective(facts, one) for one in found)
            return f"{STATES[state]} {named}{_describe_burn(found) if state == 'Missed' else ''}"
    if not facts.spec.get("objectives"):
        return "SERVING, without objectives"
    return (
        "SERVING; nobody measures the objectives"
        if facts.mode == "External"
        else "SERVING; objectives UNKNOWN"
    )


def _describe_absence(facts: Facts) -> str:
    if facts.is_at_rest:
        return "AT ZERO: the next request starts a replica"
    if facts.desired == 0 and facts.mode == "External":
        return "AT ZERO: nobody answers, as spec.replicas is 0"
    if facts.is_waking:
        return "WAKING: requests wait for the first replica"
    word = "DOWN" if facts.is_true("Degraded") or not facts.is_true("Progressing") else "STARTING"
    condition = facts.condition("Ready") or facts.condition("Degraded")
    return f"{word}: {_lower(shorten(condition.get('message', 'no replica answers'), 60))}"


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]


def _describe_objective(facts: Facts, objective: Obj) -> str:
    name = name_objective(objective["metric"], objective["percentile"])
    target_seconds = parse_number(objective.get("targetSeconds"))
    target = show_latency(target_seconds)
    measured = parse_number(objective.get("measuredSeconds"))
    age = facts.age(objective.get("since"))
    lasting = "" if age is None else f" for {age}"
    if objective["state"] == "Infeasible":
        return f"{name} {target}: an idle replica takes longer"
    if doubt := facts.find_doubt(objective):
        return f"{name} {target}: {doubt}"
    if measured is None:
        samples = objective.get("samples")
        return f"{name}: {_count_requests(samples)} measured"
    sign = ">" if objective["state"] == "Missed" else "<="
    return f"{name} {show_apart(measured, target_seconds)} {sign} {target}{lasting}"


def _count_requests(samples: int | None) -> str:
    return "no requests" if not samples else f"only {samples} {'request' if samples == 1 else 'requests'}"


def _describe_burn(missed: list[Obj]) -> str:
    """Return how long an error budget would last at this burn."""
    burns = [parse_number(objective.get("burnRate")) for objective in missed]
    burn = max((burn for burn in burns if burn is not None), default=0.0)
    if burn <= 1:
        return ""
    lasting = describe_seconds(BUDGET_DAYS * DAY_SECONDS / burn)
    return f"; {BUDGET_DAYS} days' error budget would last {lasting}"
