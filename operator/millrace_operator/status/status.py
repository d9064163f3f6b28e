"""The whole status of a service, and whether to write it now. Pure. No text in it changes by time alone.

A new leader's first plan does not know of conflicts and refused children, because only writes meet them. So
it repeats the previous leader's conditions about them.

Schedulers, kubelets and registries report the same thing in other words again and again, for example with
another count of nodes. A status of which only words are new therefore waits a few seconds after the last such
write. Any other change takes the words along at once, and the last words are written in the end.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from millrace_operator.api.conditions import (
    Reason,
    find_condition,
    merge_conditions,
    render_time,
)
from millrace_operator.render.child import replica_labels
from millrace_operator.status.conditions import list_truths
from millrace_operator.status.cost import Bill, Fleet, draw_bill, find_prices
from millrace_operator.status.inputs import StatusInputs
from millrace_operator.status.model_status import describe_model
from millrace_operator.status.rollout_conditions import count_replicas
from millrace_operator.status.scaling_status import Scaling, gather_figures, refresh_scaling

Json = dict[str, Any]
PAUSE_SECONDS = 4.0
"""A pod's own words are in status within 5 s: this pause, and one second in the queue."""
MET_BY_WRITES = frozenset({Reason.CONFLICT, Reason.CHILD_REFUSED})


class FullStatus(NamedTuple):
    """A status, and when time alone changes it."""

    status: dict[str, Any]
    looks: list[float]
    """Seconds from now."""
    has_only_new_words: bool = False
    has_only_new_time: bool = False
    """Whether only the rollout's time is new, which records the operator's turn."""
    is_inherited: bool = False
    """Whether it repeats conditions of the previous leader."""


def render_full_status(inputs: StatusInputs) -> FullStatus:
    """Return the whole status, with what only the previous leader knows."""
    full = _render_news(inputs)
    if inputs.snapshot.obstacles.is_tried:
        return full
    status = inherit_conditions(full.status, inputs.old)
    return full._replace(status=status, is_inherited=status != full.status)


def _render_news(inputs: StatusInputs) -> FullStatus:
    """Return the status. Figures that move all the time stay as they were until a write is worth it."""
    old, count, now, targets = inputs.old, inputs.count, inputs.now, inputs.targets
    status = render_status(inputs)
    fleet = Fleet(
        target=targets.target,
        revisions=targets.known.revisions,
        pods=inputs.snapshot.pods,
        desired=count.desired,
        changes=count.changes,
    )
    bill = draw_bill(find_prices(inputs.settings.prices, inputs.spec.cost), fleet, old.get("cost", {}), now)
    if bill is not None:  # without the price of tokens, which moves with the figures
        status["cost"] = bill.keep_tokens(old.get("cost", {}))
    figures = gather_figures(inputs.spec.scaling.mode, inputs.snapshot.advice, inputs.observed, now)
    scaling = refresh_scaling(count, old, status, figures, now)
    status["scaling"] = scaling.status
    if scaling.holds_conditions:
        status["conditions"] = old["conditions"]
    if bill is not None:
        before = bill.keep_tokens(old.get("cost", {}))
        status["cost"] = before if scaling.figures is None else bill.price_tokens(scaling.figures)
    looks = [*_list_looks(inputs, scaling, bill), *_list_rollout_looks(inputs, status)]
    pause = judge_words(old, status, inputs.snapshot.worded_at, now)
    if pause.seconds is not None:
        return FullStatus(old, [*looks, pause.seconds])
    has_moved = status.get("rollout") != old.get("rollout")
    has_only_new_time = has_moved and _leave_out_time(status) == _leave_out_time(old)
    return FullStatus(
        status, looks, has_only_new_words=pause.has_only_new_words, has_only_new_time=has_only_new_time
    )


def _list_looks(inputs: StatusInputs, scaling: Scaling, bill: Bill | None) -> Iterator[float]:
    """Yield after how many seconds time alone changes the figures, the bill, or what pods have to do."""
    if scaling.look_again is not None:
        yield scaling.look_again
    if bill is not None and bill.changes_after is not None:
        yield bill.changes_after
    yield from inputs.late_after()
    if inputs.wake is not None:
        yield inputs.wake.until - inputs.now + 1


def _leave_out_time(status: dict[str, Any]) -> dict[str, Any]:
    """Return the status without the rollout's time, and without the parts that every write takes along."""
    left = leave_out_words({**status, "rollout": {**status.get("rollout", {}), "progressedAt": None}})
    left["scaling"]["message"] = None
    if "cost" in left:
        left["cost"] = {**left["cost"], "perMillionTokens": None}
    return left


def _list_rollout_looks(inputs: StatusInputs, status: dict[str, Any]) -> list[float]:
    """Return after how many seconds the rollout is late, its canary has served, or its turn is recorded."""
    if "rollout" not in status:
        return []
    progress = inputs.targets.progress
    ends_at = progress.canary.ends_at if progress.canary else None
    left = progress.seconds_left(inputs.deadline_seconds)
    waits = [left, *([] if ends_at is None else [ends_at - progress.now])]
    waits += [] if progress.noted_after is None else [progress.noted_after]
    return [wait + 1 for wait in waits if wait > 0]


def render_status(inputs: StatusInputs) -> dict[str, Any]:
    """Return the status to write."""
    metadata = inputs.snapshot.service["metadata"]
    generation = int(metadata.get("generation", 0))
    rollout, truths = inputs.rollout(), list_truths(inputs)
    status = {
        "observedGeneration": generation,
        "conditions": merge_conditions(inputs.old.get("conditions", []), truths, generation, inputs.now),
        "replicas": _count_replicas(inputs, is_rolling_out=rollout is not None),
        "readyReplicas": inputs.observed.num_ready,
        "selector": ",".join(
            f"{key}={value}" for key, value in replica_labels(inputs.snapshot.service).items()
        ),
        "url": inputs.settings.url(metadata["namespace"], metadata["name"]),
        "currentRevision": inputs.current_revision,
        "updateRevision": inputs.pending.name if inputs.pending else inputs.targets.choice.asked,
        "rejectedRevision": inputs.targets.choice.rejected,
        "spentOrder": inputs.targets.spent_order,
        "model": describe_model(inputs, truths),
        "rollout": rollout,
        "replacement": _describe_replacement(inputs),
    }
    return {key: value for key, value in status.items() if value is not None}


def _count_replicas(inputs: StatusInputs, *, is_rolling_out: bool) -> int:
    """Return `status.replicas` without the extra replica of a rollout, which an HPA would copy.

    So it never rises above the desired count. Above that it can only fall, as replicas leave one by one.
    """
    num_pods, desired = len(inputs.observed.pods), inputs.count.desired
    return min(num_pods, desired if is_rolling_out else max(desired, inputs.old.get("replicas", 0)))


def _describe_replacement(inputs: StatusInputs) -> dict[str, Any] | None:
    return (
        {"startedAt": render_time(inputs.targets.evacuation.since)}
        if inputs.targets.evacuation.pods
        else None
    )


def describe_status(status: dict[str, Any]) -> str:
    """Return the gravest reason and the counts, for the log. A spec that was never read has no counts."""
    degraded, ready = (find_condition(status, name) or {} for name in ("Degraded", "Ready"))
    reason = degraded.get("reason") if degraded.get("status") == "True" else ready.get("reason")
    desired = status.get("scaling", {}).get("desiredReplicas")
    if desired is None:
        return str(reason)
    return f"{reason}, {count_replicas(status.get('readyReplicas', 0), desired, 'ready')}"


def inherit_conditions(status: dict[str, Any], old: dict[str, Any]) -> dict[str, Any]:
    """Return `status` with the conditions of `old` about what only a write meets."""
    kept = [_keep(condition, find_condition(old, condition["type"])) for condition in status["conditions"]]
    return {**status, "conditions": kept}


def _keep(condition: dict[str, Any], old: dict[str, Any] | None) -> dict[str, Any]:
    if old is None or old.get("reason") not in MET_BY_WRITES:
        return condition
    return {**old, "observedGeneration": condition["observedGeneration"]}


class Pause(NamedTuple):
    """Whether only words are new, and for how long they wait."""

    has_only_new_words: bool
    seconds: float | None = None
    """Seconds until they are written; None if they need not wait."""


def judge_words(old: Json, new: Json, worded_at: float | None, now: float) -> Pause:
    """Return whether a status waits. `worded_at` is the time of the last write of words alone."""
    if _list_words(old) == _list_words(new) or leave_out_words(old) != leave_out_words(new):
        return Pause(has_only_new_words=False)
    left = 0.0 if worded_at is None else worded_at + PAUSE_SECONDS - now
    return Pause(has_only_new_words=True, seconds=left if left > 0 else None)


def _list_words(status: Json) -> list[Any]:
    words = [one.get("message") for one in status.get("conditions", [])]
    return [*words, status.get("model", {}).get("fetched")]


def leave_out_words(status: Json) -> Json:
    """Return the status without words and figures, which are written together."""
    conditions = [{**one, "message": None} for one in status.get("conditions", [])]
    left = {**status, "conditions": conditions, "scaling": {**status.get("scaling", {}), "evidence": None}}
    if "model" in status:  # ModelReady has the progress of a fetch in words, too
        left["model"] = {field: value for field, value in status["model"].items() if field != "fetched"}
    return left
