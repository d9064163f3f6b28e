"""A worker's place among those that hold a model together."""

from dataclasses import dataclass

from millrace_fit.shard import ALONE, Shard
from millrace_kernels.exchange.memory import Exchange


@dataclass(frozen=True, slots=True)
class Rank:
    """Which worker this is, and where it meets the others."""

    shard: Shard = ALONE
    exchange_fd: int = -1
    """The file that workers on CPUs exchange their parts in."""
    meeting: str = ""
    """The URL where torch's processes find each other: on one machine a file that does not exist yet. Over
    several it would be tcp://, with the address that `replica/world.py` reads."""

    def open_exchange(self) -> Exchange | None:
        """Return the exchange of native workers; None for the only worker."""
        if self.shard.count == 1:
            return None
        return Exchange(self.exchange_fd, self.shard.index, self.shard.count)


ALONE_RANK = Rank()
"""The only worker."""
