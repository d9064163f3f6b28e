"""The details of `explain -v` and `explain --since`: inputs, candidates, limits, cost and changes. Pure."""

from collections.abc import Iterator

from millrace_kubectl.count_changes import describe_causes
from millrace_kubectl.facts import Facts
from millrace_kubectl.kubectl import Obj
from millrace_kubectl.wording import (
    describe_moment,
    describe_seconds,
    name_objective,
    show_latency,
    show_rate,
    show_share,
)
from millrace_operator.api.change_record import NUM_CHANGES, identify, merge_changes, read_changes
from millrace_operator.api.conditions import parse_time
from millrace_operator.api.quantities import parse_number
from millrace_operator.api.status_lines import FLAPS_BORNE, SPENT_SECONDS

ROUNDING = 1e-5
"""The rounding of one replica's cost in status."""
NO_PRICE = "no resource of a replica has a price (spec.cost, or cost.resourceHours of the chart)"


def describe_cost(facts: Facts) -> str:
    """Return the line of the service's cost."""
    if not facts.cost:
        return f"COST unknown: {NO_PRICE}"
    return f"COST {'; '.join(_list_parts(facts.cost))}"


def _list_parts(cost: Obj) -> Iterator[str]:
    money, tokens = cost.get("currency", "?"), cost.get("perMillionTokens")
    yield _show_sum(cost, money)
    yield "the price of tokens is unknown" if tokens is None else f"{tokens} {money} per 1M tokens"
    saved, peak = cost.get("savedPerHour", "?"), cost.get("peakReplicas", "?")
    yield f"{saved} {money}/h less than a static peak of {peak}"


def _show_sum(cost: Obj, money: str) -> str:
    """Return the sum with its terms, if all replicas cost the same."""
    total, replicas = cost.get("perHour", "?"), cost.get("replicas")
    if not _is_uniform(cost):
        return f"{total} {money}/h for {'?' if replicas is None else replicas} replicas that differ"
    terms = str(cost["pricedResources"])
    factor = f"({terms})" if " + " in terms else terms
    return f"{replicas} × {factor} {money}/h = {total} {money}/h"


def _is_uniform(cost: Obj) -> bool:
    """Whether each replica costs as much as a new one: in a rollout they may differ."""
    each, total = (parse_number(cost.get(name)) for name in ("replicaPerHour", "perHour"))
    replicas = cost.get("replicas")
    if each is None or total is None or replicas is None or not cost.get("pricedResources"):
        return False
    return bool(abs(each * replicas - total) <= ROUNDING * replicas)


RATES = {
    "arrivals": "arrivalsPerSecond",
    "forecast": "forecastPerSecond",
    "one replica": "perReplicaPerSecond",
}
LENGTHS = {"prompts": "promptTokens", "answers": "generationTokens"}
STATES = ("ready", "starting", "failing", "unschedulable")


def list_changes(facts: Facts, seconds: float, record: str | None = None) -> Iterator[str]:
    """Yield the changes in the last `seconds`, and how far back the changes are known if that is less.

    `record` is the operator's longer record of changes; without it only those in status are known.
    """
    kept = read_changes(record or "")
    changes = merge_changes(kept, facts.changes)
    recent = [one for one in changes if (parse_time(one["at"]) or 0.0) >= facts.now - seconds]
    span = describe_seconds(seconds)
    yield f"CHANGES in the last {span}" if recent else f"NO CHANGE in the last {span}"
    if len(recent) == len(changes) >= NUM_CHANGES:
        oldest = parse_time(changes[0]["at"]) or 0.0
        if not kept:
            yield f"  (only the last {NUM_CHANGES} are kept)"
        yield f"  (known back to {describe_moment(oldest, facts.now)})"
    previous = dict(zip(map(identify, changes[1:]), changes, strict=False))
    for one in recent:
        moment = describe_moment(parse_time(one["at"]) or 0.0, facts.now)
        causes = describe_causes(one, previous.get(identify(one)))
        beside = f" ({causes})" if causes else ""
        yield f"  {moment} {one['from']} -> {one['to']}{beside} {one.get('message') or one.get('reason', '')}"


def list_details(facts: Facts) -> Iterator[str]:
    """Yield the lines of -v. Inputs, model and candidates are those of the operator's last decision."""
    if facts.figures:
        yield from _list_inputs(facts)
        yield from _list_objectives(facts)
        if facts.mode != "External":
            yield _describe_model(facts.figures.get("model"))
            yield _describe_predictions(facts)
            yield from filter(None, [_describe_next(facts)])
        yield from _list_candidates(facts)
    elif facts.evidence:
        yield from _list_states(facts)
        yield from _list_objectives(facts)
    else:
        yield "NO FIGURES yet"
    if facts.status:
        yield _describe_replica(facts.model)
        yield describe_cost(facts)
    yield from _list_conditions(facts)


def _list_inputs(facts: Facts) -> Iterator[str]:
    seen, sample = (facts.age(facts.figures.get(name)) for name in ("observedAt", "oldestSampleAt"))
    beside = "" if sample is None else f"; the oldest replica's sample is of {sample} ago"
    yield f"INPUTS seen {seen} ago{beside}"
    if facts.mode != "External":
        for name, field in RATES.items():
            value = facts.find_figure(field)
            yield f"  {name:<12} {'unknown' if value is None else show_rate(value) + ' req/s'}"
        yield from _list_cautions(facts)
        for name, field in LENGTHS.items():
            value = facts.find_figure(field)
            yield f"  {name:<12} {'unknown' if value is None else show_rate(value) + ' tokens on average'}"
        tokens = facts.find_figure("generatedTokensPerSecond")
        yield f"  {'tokens':<12} {'unknown' if tokens is None else show_rate(tokens) + ' generated/s'}"
        for name in ("running", "waiting"):
            count = facts.figures.get(name)
            yield f"  {name:<12} {'unknown' if count is None else count}"
    yield from _list_states(facts)
    for one in facts.figures.get("rejected", []):
        yield f"  REJECTED {one.get('signal', '?')}: {one.get('reason', 'unknown')}"


def _list_states(facts: Facts) -> Iterator[str]:
    states = {"ready": "?" if facts.ready is None else facts.ready, **facts.evidence}
    counts = ", ".join(f"{states.get(name, 0)} {name}" for name in STATES)
    yield f"  {'replicas':<12} {counts if facts.evidence else 'unknown'}"


def _list_cautions(facts: Facts) -> Iterator[str]:
    """Yield why the plan is for more than the expected load, and why the count falls late."""
    margin, correction = (facts.find_figure(name) for name in ("marginPerSecond", "correction"))
    flaps = facts.figures.get("flaps", 0)
    if margin:
        yield f"  {'margin':<12} {show_rate(margin)} req/s of the forecast, as earlier ones were too low"
    if correction:
        yield f"  {'correction':<12} {correction:.3g} times the forecast, as the model promised too much"
    if flaps > FLAPS_BORNE:
        yield f"  {'flaps':<12} {flaps} in three hours: the window for going down is three times as long"


def _list_objectives(facts: Facts) -> Iterator[str]:
    for one in facts.objectives:
        measured = parse_number(one.get("measuredSeconds"))
        latency = "not measured" if measured is None else show_latency(measured)
        samples = one.get("samples")
        yield (
            f"OBJECTIVE {name_objective(one['metric'], one['percentile'])} {one.get('state', '?')} "
            f"for {facts.age(one.get('since')) or '?'}: {latency}, "
            f"target {show_latency(parse_number(one.get('targetSeconds')))}, "
            f"{'unknown' if samples is None else samples} requests{_describe_budget(one)}"
        )


def _describe_budget(objective: Obj) -> str:
    spent = parse_number(objective.get("spentSeconds"))
    return f", {spent:.0f} of {SPENT_SECONDS:.0f} s of burn until a replica is added" if spent else ""


def _describe_model(model: Obj | None) -> str:
    if model is None:
        return "MODEL nothing learned yet"
    fields = ("alphaSeconds", "betaSecondsPerToken", "gammaSecondsPerContextToken")
    alpha, beta, gamma = (_show_cost(model.get(field)) for field in fields)
    error = parse_number(model.get("relativeError"))
    accuracy = "its error is not known yet" if error is None else f"{100 * error:.3g}% off"
    used = "planned with" if model.get("fitted") else "not good enough to plan with"
    if model.get("tried"):
        used = "tried before the first request and not proven by requests"
    return (
        f"MODEL a step takes {alpha} + {beta} a token + {gamma} a context token; {accuracy}, "
        f"{model.get('samples', '?')} samples, {used}"
    )


def _describe_replica(model: Obj) -> str:
    if "serving" not in model:
        return "REPLICA unknown: the operator has seen no metrics of the current revision"
    return f"REPLICA {model.get('device', '?')}: {model['serving']}"


def _describe_predictions(facts: Facts) -> str:
    attainment = facts.figures.get("attainment") or {}
    error = parse_number(attainment.get("error"))
    if error is None:
        return "PREDICTIONS are not shown: too few recent requests of settled replicas to compare them with"
    used = "shown" if attainment.get("counts") else "too much to show them"
    return f"PREDICTIONS of the part in time were {100 * error:.2g} points off in the last hour: {used}"


def _describe_next(facts: Facts) -> str | None:
    """Return the latency and the part in time with the counts next to the present one; None if unknown."""
    attainment = facts.figures.get("attainment") or {}
    metric, percentile = attainment.get("metric"), attainment.get("percentile")
    if metric is None or percentile is None or facts.desired is None:
        return None
    near = [one for one in attainment.get("counts", []) if abs(one["replicas"] - facts.desired) <= 1]
    predictions = ", ".join(_show_prediction(one) for one in near)
    if not predictions:
        return None
    return f"NEXT {name_objective(metric, percentile)} {predictions}; the objective is {percentile}% in time"


def _show_prediction(one: Obj) -> str:
    """Return the latency with a count and the part of the requests in time."""
    share, seconds = parse_number(one.get("inTime")), parse_number(one.get("seconds"))
    if share == 0 and seconds is None:
        return f"a growing queue at {one['replicas']}"
    in_time = "?" if share is None else show_share(share) if share > 0 else "none"
    latency = "?" if seconds is None else show_latency(seconds)
    return f"{latency} at {one['replicas']} ({in_time})"


def _show_cost(text: str | None) -> str:
    seconds = parse_number(text)
    if seconds is None:
        return "?"
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g}{unit}"
    return f"{seconds / 1e-9:.3g}ns"


def _list_candidates(facts: Facts) -> Iterator[str]:
    wanted = max((one["replicas"] for one in facts.figures.get("candidates", [])), default=None)
    for one in facts.figures.get("candidates", []):
        largest = "  <- the largest" if one["replicas"] == wanted else ""
        yield f"CANDIDATE {one['name']} asks for {one['replicas']}{largest}"
    for limit in facts.figures.get("limits", []):
        yield f"LIMITED by {limit}"


def _list_conditions(facts: Facts) -> Iterator[str]:
    for one in facts.status.get("conditions", []):
        age = facts.age(one.get("lastTransitionTime"))
        yield f"CONDITION {one['type']}={one['status']} {one['reason']} for {age}: {one.get('message', '')}"
    if facts.scaling.get("message"):
        yield f"DECISION {facts.scaling['message']}"
