"""A replica count and why: what `decide` returns and everything after it reads. Pure."""

from dataclasses import dataclass
from enum import StrEnum

from millrace_operator.autoscaler.decide.situation import Estimate


class Reason(StrEnum):
    """Why the count is what it is, in one word."""

    SIGNALS_MISSING = "SignalsMissing"
    STARTING = "Starting"
    """No replica has been Ready for long enough to be measured: nothing is missing yet."""
    LEARNING = "Learning"
    SCALING_UP = "ScalingUp"
    SCALING_DOWN = "ScalingDown"
    STABILISING = "Stabilising"
    AT_MAXIMUM = "AtMaximum"
    AT_CAPACITY = "AtCapacity"
    AT_MINIMUM = "AtMinimum"
    SLO_INFEASIBLE = "SLOInfeasible"
    STEADY = "Steady"


@dataclass(frozen=True)
class Decision:
    """A replica count and why."""

    desired: int
    reason: Reason
    message: str
    binding: str
    """The candidate or limit that set the count."""
    candidates: dict[str, int]
    is_held: bool
    """Whether the count was kept because too little is known to change it."""
    estimate: Estimate
    limits: tuple[str, ...] = ()
    """What paced or bounded the largest candidate."""
    prediction_error: float | None = None
    """By how much predictions of the part in time were off of late; None while that is not known."""
