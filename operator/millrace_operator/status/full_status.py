"""The whole of what status says: its own truths, the autoscaler's figures and the bill. Pure."""

from typing import Any, NamedTuple

from millrace_operator.rollout.targets import Targets
from millrace_operator.status.cost import Fleet, draw_bill, find_prices
from millrace_operator.status.inputs import StatusInputs
from millrace_operator.status.scaling_status import gather_figures, refresh_scaling
from millrace_operator.status.status import render_status
from millrace_operator.status.write_interval import judge_words, leave_out_words


class Told(NamedTuple):
    """A status, and when time alone makes another one of it."""

    status: dict[str, Any]
    looks: list[float]
    """Seconds from now."""
    is_of_words: bool = False
    """Whether words alone are new."""
    is_of_time: bool = False
    """Whether the rollout's time alone is new: its turn is written down."""


def tell_status(inputs: StatusInputs, targets: Targets) -> Told:
    """Return the whole status. Figures that move all the time stay as they were until it is worth a write."""
    old, count, now = inputs.old, inputs.count, inputs.now
    status = render_status(inputs)
    fleet = Fleet(targets.target, targets.revisions, inputs.snapshot.pods, count.desired, count.changes)
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
    timed = (scaling.look_again, None if bill is None else bill.changes_after)
    looks = [look for look in timed if look is not None]
    looks += [*inputs.late_after(), *_list_rollout_looks(inputs, status)]
    looks += [] if inputs.wake is None else [inputs.wake.until - inputs.now + 1]
    pause = judge_words(old, status, inputs.snapshot.worded_at, now)
    if pause.seconds is not None:
        return Told(old, [*looks, pause.seconds])
    has_moved = status.get("rollout") != old.get("rollout")
    is_of_time = has_moved and _leave_out_time(status) == _leave_out_time(old)
    return Told(status, looks, is_of_words=pause.is_of_words, is_of_time=is_of_time)


def _leave_out_time(status: dict[str, Any]) -> dict[str, Any]:
    """Return the status without the rollout's time, and without what is written along with any news."""
    left = leave_out_words({**status, "rollout": {**status.get("rollout", {}), "progressedAt": None}})
    left["scaling"]["message"] = None
    if "cost" in left:
        left["cost"] = {**left["cost"], "perMillionTokens": None}
    return left


def _list_rollout_looks(inputs: StatusInputs, status: dict[str, Any]) -> list[float]:
    """Return after how many seconds the rollout is late, its canary has served, or a turn is to be noted."""
    if "rollout" not in status:
        return []
    progress = inputs.progress
    ends_at = progress.canary.ends_at if progress.canary else None
    left = progress.seconds_left(inputs.deadline_seconds)
    waits = [left, *([] if ends_at is None else [ends_at - progress.now])]
    waits += [] if progress.noted_after is None else [progress.noted_after]
    return [wait + 1 for wait in waits if wait > 0]
