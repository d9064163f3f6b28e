"""Rules by which a gateway chooses a replica, as a simulation asks them."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from benchmarks.routing.workload import Prompt


class View(NamedTuple):
    """What one gateway knows of one replica."""

    num_own: int
    """This gateway's own requests in flight there."""
    num_waiting: int
    """At the last report; so are the next two."""
    num_running: int
    kv_usage: float
    num_sent: int
    """This gateway's requests since the last report."""


class Policy(Protocol):
    """A rule."""

    def choose(self, prompt: Prompt, views: Sequence[View]) -> int:
        """Return the number of the replica."""


class LeastLoad:
    """The replica with the fewest of the gateway's own requests; ties rotate. The gateway's rule before."""

    def __init__(self) -> None:
        self._turn = 0

    def choose(self, prompt: Prompt, views: Sequence[View]) -> int:
        """Return the number of the replica."""
        del prompt
        least = min(view.num_own for view in views)
        ties = [number for number, view in enumerate(views) if view.num_own == least]
        self._turn += 1
        return ties[self._turn % len(ties)]
