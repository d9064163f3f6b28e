"""The scaling loop's settings, from the command line."""

from dataclasses import dataclass

from millrace_operator.autoscale.policy import Policy


@dataclass(frozen=True)
class ScalingSettings:
    """The same for every service."""

    prometheus_url: str
    tick_seconds: float = Policy.tick_seconds
    """Between two decisions."""
    scale_down_window_seconds: float = Policy.scale_down_window_seconds
    """Scale down only to what every moment of this long would have allowed."""
