"""What the scaling loop is told on the command line."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ScalingSettings:
    """The same for every service."""

    prometheus_url: str
    tick_seconds: float = 2.0
    """Between two decisions."""
    scale_down_window_seconds: float = 180.0
    """Scale down only to what every moment of this long would have allowed."""
