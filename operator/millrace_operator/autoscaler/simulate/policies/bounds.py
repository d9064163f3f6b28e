"""Between how many and how many replicas a policy may choose."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Bounds:
    """The least and the most replicas."""

    least: int
    most: int

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most:
            raise ValueError(
                f"replicas from {self.least} to {self.most}; write 1 or more, the smaller one first"
            )

    def clamp(self, count: float) -> int:
        """Return the whole count within the bounds that is nearest."""
        return int(max(self.least, min(count, self.most)))


def check_knob(name: str, value: float) -> None:
    """Refuse a knob's value that no rule could follow."""
    if not 0 < value < float("inf"):
        raise ValueError(f"{name} is {value}; write more than 0")
