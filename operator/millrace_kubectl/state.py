"""How a service is, in one line: what it misses or meets, for how long, and what that costs. Pure."""

from millrace_kubectl.facts import Facts
from millrace_kubectl.kubectl import Obj
from millrace_kubectl.moments import describe_seconds
from millrace_kubectl.words import name_objective, shorten, show_apart, show_latency
from millrace_operator.api.quantities import parse_number

STATES = {"Missed": "MISSING", "Infeasible": "CAN'T MEET", "Unknown": "UNKNOWN", "Met": "MEETING"}
DAY_SECONDS = 86400.0
BUDGET_DAYS = 30
"""Which an error budget is for: what the chart's alerts reckon with."""


def describe_state(facts: Facts) -> str:
    """Return how the service is: the worst of its objectives first."""
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
    told = facts.condition("Ready") or facts.condition("Degraded")
    return f"{word}: {_lower(shorten(told.get('message', 'no replica answers'), 60))}"


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
    """Return how soon an error budget is used up if it goes on so."""
    burns = [parse_number(objective.get("burnRate")) for objective in missed]
    burn = max((burn for burn in burns if burn is not None), default=0.0)
    if burn <= 1:
        return ""
    lasting = describe_seconds(BUDGET_DAYS * DAY_SECONDS / burn)
    return f"; {BUDGET_DAYS} days' error budget would last {lasting}"
