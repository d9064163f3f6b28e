"""The decision, a replica count with its reason: `decide` returns it, and all later steps read it. Pure."""

from dataclasses import dataclass
from enum import StrEnum

from millrace_operator.autoscaler.decide.situation import Estimate


class Reason(StrEnum):
    """The reason for the count, in one word."""

    SIGNALS_MISSING = "SignalsMissing"
    STARTING = "Starting"
    """No replica has been Ready for long enough to have samples: no signal is missing yet."""
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
    """A replica count and its reason."""

    desired: int
    reason: Reason
    message: str
    binding: str
    """The candidate or limit that set the count."""
    candidates: dict[str, int]
    is_held: bool
    """Whether the count stays because too little is known to change it."""
    estimate: Estimate
    limits: tuple[str, ...] = ()
    """The limits of pacing and bounds that changed the largest candidate."""
    prediction_error: float | None = None
    """The error of recent predictions of the part in time; None while it is unknown."""
