"""When `status.scaling` is written: at every change, and its figures alone from time to time. Pure.

Figures change all the time, and a large cluster can't write all of them. So a write of anything else takes
them along. Alone they are written every ten minutes, whether they moved or not: older figures mean that no
operator leads. While something is wrong they are written every minute, if one has moved by a tenth. A change
of nothing but the reason, the binding or the conditions ObjectivesMet and ScalingActive waits for a minute
too, because near a limit they go back and forth with every tick. A count, a mode or another condition never
waits.

In mode External nobody measures. The figures of the replicas follow events, and nothing moves by time.
"""

from datetime import datetime
from itertools import zip_longest
from typing import Any, NamedTuple

from millrace_operator.api.change_record import render_change_line
from millrace_operator.api.conditions import Reason, parse_time, render_time
from millrace_operator.api.quantities import parse_number
from millrace_operator.api.scaling_types import ScalingMode
from millrace_operator.api.status_lines import TRIED, read_objectives, render_objective
from millrace_operator.observed.revisions import Observed
from millrace_operator.observed.snapshot import Advice
from millrace_operator.scaling.count import Change, Count

Json = dict[str, Any]
PERIOD_SECONDS = 600.0
URGENT_PERIOD_SECONDS = 60.0
LEAST_MOVE = 0.1
PASSING = frozenset({"observedAt", "startingSince", "since", "samples", "learning"})
"""Fields whose change alone is no news."""
KEPT = (
    "observedAt",
    "arrivalsPerSecond",
    "forecastPerSecond",
    "perReplicaPerSecond",
    "limit",
    "running",
    "waiting",
    "futileSteps",
)
"""Figures that status has as the autoscaler gives them."""
STATES = ("starting", "failing", "unschedulable")
RESTLESS = frozenset({"ObjectivesMet", "ScalingActive", "UpToDate"})
"""Conditions that may change with every tick. UpToDate counts among them while its status stays."""


class Scaling(NamedTuple):
    """The `status.scaling` to write, and after how many seconds its figures may be written again."""

    status: Json
    look_again: float | None
    holds_conditions: bool = False
    """Whether the conditions stay as they were, too."""
    figures: Json | None = None
    """All present figures if those in status are new; None if they stay."""


def count_replicas(observed: Observed) -> Json:
    """Return how many replicas are in each state."""
    homeless = [pod for pod in observed.pods if pod.cause and pod.cause.reason is Reason.UNSCHEDULABLE]
    failing = [pod for pod in observed.pods if pod.cause and pod not in homeless]
    starting = [pod for pod in observed.pods if not pod.is_ready and not pod.cause]
    since = min((pod.created for pod in starting if _is_time(pod.created)), default=None)
    return {
        "ready": observed.num_ready,
        "starting": len(starting),
        **({"startingSince": since} if since else {}),
        "failing": len(failing),
        "unschedulable": len(homeless),
    }


def gather_figures(mode: ScalingMode, advice: Advice | None, observed: Observed, now: float) -> Json | None:
    """Return the present figures; None for a new leader, which has none yet."""
    if mode is ScalingMode.EXTERNAL:
        return {"observedAt": render_time(now), "replicas": count_replicas(observed)}
    if advice is None or advice.evidence is None:
        return None
    return {**advice.evidence, "replicas": count_replicas(observed)}


def refresh_scaling(count: Count, old: Json, new: Json, figures: Json | None, now: float) -> Scaling:
    """Return `status.scaling` for the status `new`, where the present one is `old`."""
    before: Json | None = old.get("scaling", {}).get("evidence")
    changes = {"lastChanges": [render_change_line(one) for one in count.changes]} if count.changes else {}
    period = URGENT_PERIOD_SECONDS if _is_in_trouble(count, new, figures) else PERIOD_SECONDS
    if figures is None:
        beside = {} if before is None else {"evidence": before}
        return Scaling({**count.status, **changes, **beside}, None)
    is_restless = _differ_in_restless_conditions(old, new)
    is_written = _differ_elsewhere(old, new) and not is_restless
    moves_by_events = count.status["mode"] == ScalingMode.EXTERNAL
    shown = summarise_figures(figures, before)
    latest = {**count.latest, **changes, "evidence": shown}
    is_first = before is None and (moves_by_events or bool(shown.keys() & {*KEPT[1:]}))
    if is_first or count.change is Change.COUNT or is_written:
        return Scaling(latest, None if moves_by_events else period, figures=figures)
    has_news = count.change is Change.WORDS or is_restless
    if moves_by_events and not has_news and before and not has_moved(before, shown):
        return Scaling(old["scaling"], None)
    period = URGENT_PERIOD_SECONDS if has_news else period
    if before is None:  # that nothing is known is written with the next news
        return Scaling({**count.status, **changes}, None)
    age = now - (parse_time(before["observedAt"]) or 0.0)
    if age >= PERIOD_SECONDS or (age >= period and (has_news or has_moved(before, shown))):
        return Scaling(latest, period, figures=figures)
    return Scaling(old["scaling"], period - age if age < period else period, holds_conditions=is_restless)


def summarise_figures(figures: Json, before: Json | None) -> Json:
    """Return the figures in the flat form of status. `before` is the form that status has now."""
    states, model = figures.get("replicas", {}), figures.get("model")
    rejected = {one["signal"]: one["reason"] for one in figures.get("rejected", [])}
    latencies = [
        render_objective(one, rejected.get(f"P{one['percentile']} {one['metric']}"))
        for one in _date_states(figures, before)
    ]
    found = {
        **{name: figures.get(name) for name in KEPT},
        "wantedReplicas": max((one["replicas"] for one in figures.get("candidates", [])), default=None),
        **{name: states.get(name) or None for name in STATES},
        "startingSince": states.get("startingSince"),
        "learning": _describe_learning(model) if "arrivalsPerSecond" in figures else None,
        "latencies": latencies or None,
    }
    return {name: value for name, value in found.items() if value is not None}


def _describe_learning(model: Json | None) -> str | None:
    """Return what a replica's model lacks; None once requests have shown it."""
    if model is None:
        return "no samples so far"
    if model.get("tried"):
        return TRIED
    if model.get("fitted"):
        return None
    error, samples = parse_number(model.get("relativeError")), model.get("samples")
    return f"{samples} samples so far" if error is None else f"{100 * error:.0f}% off after {samples} samples"


def read_latencies(evidence: Json) -> Json:
    """Return the figures of status with those of the objectives."""
    return {**evidence, "latencies": read_objectives(evidence.get("latencies", []))}


def has_moved(before: Json, after: Json) -> bool:
    """Whether a figure of status differs by more than a tenth, or a word differs."""
    return _has_moved(read_latencies(before), read_latencies(after))


def _has_moved(before: Any, after: Any) -> bool:
    if isinstance(before, dict) and isinstance(after, dict):
        names = (before.keys() | after.keys()) - PASSING
        return any(_has_moved(before.get(name), after.get(name)) for name in names)
    if isinstance(before, list) and isinstance(after, list):
        return any(_has_moved(*pair) for pair in zip_longest(before, after))
    if before == after:
        return False
    numbers = _read_number(before), _read_number(after)
    if numbers[0] is None or numbers[1] is None:
        return True
    return abs(numbers[1] - numbers[0]) > LEAST_MOVE * max(numbers[0], numbers[1])


def _read_number(value: Any) -> float | None:
    try:
        return None if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        return None


def _is_in_trouble(count: Count, status: Json, figures: Json | None) -> bool:
    """Whether replicas are missing, or an objective is missed."""
    objectives = (figures or {}).get("objectives", [])
    is_lacking = status.get("readyReplicas", 0) < count.desired
    return is_lacking or any(objective["state"] == "Missed" for objective in objectives)


def _differ_elsewhere(old: Json, new: Json) -> bool:
    """Whether status is written anyway, so that new figures cost nothing."""
    return {**old, "scaling": None} != {**new, "scaling": None}


def _differ_in_restless_conditions(old: Json, new: Json) -> bool:
    """Whether only restless conditions differ, and no condition is new or gone.

    The loss of signals is written at once, and their return when it is due: a source that comes and goes is
    at most two writes a minute.
    """
    before, after = ({one["type"]: one for one in status.get("conditions", [])} for status in (old, new))
    differing = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    is_alone = not _differ_elsewhere({**old, "conditions": []}, {**new, "conditions": []})
    if not (is_alone and differing and differing <= RESTLESS & before.keys() & after.keys()):
        return False
    is_lost = [conditions.get("ScalingActive", {}).get("reason") for conditions in (before, after)]
    is_same = before.get("UpToDate", {}).get("status") == after.get("UpToDate", {}).get("status")
    return bool(is_same and (is_lost[1] != Reason.SIGNALS_MISSING or is_lost[0] == is_lost[1]))


def _date_states(figures: Json, before: Json | None) -> list[Json]:
    """Return the objectives, each with the time since when it is in its state."""
    known = {_identify(objective): objective for objective in read_latencies(before or {})["latencies"]}
    dated = []
    for objective in figures.get("objectives", []):
        former = known.get(_identify(objective), {})
        is_same = former.get("state") == objective["state"]
        dated.append({**objective, "since": former["since"] if is_same else figures["observedAt"]})
    return dated


def _identify(objective: Json) -> tuple[Any, ...]:
    return objective["metric"], objective["percentile"], objective["targetSeconds"]


def _is_time(text: str) -> bool:
    try:
        return bool(datetime.fromisoformat(text))
    except ValueError:
        return False
