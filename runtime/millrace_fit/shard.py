"""The heads, rows and columns of a model's matrices that one of several workers holds."""

from dataclasses import dataclass
from typing import Final

from millrace_fit.errors import ArchitectureError

MOST_GPUS: Final = 16
"""Of one machine."""
CANNOT_SHARE: Final = "can't be shared by"
"""In the words of heads that do not divide, by which the operator knows them in a replica's last line."""


@dataclass(frozen=True, slots=True)
class Cut:
    """The rows or columns from `begin` to `end`, of `total`."""

    total: int
    begin: int
    end: int

    @property
    def size(self) -> int:
        """How many rows or columns these are."""
        return self.end - self.begin

    def times(self, unit: int) -> "Cut":
        """Return the same part, counted in pieces of which each row or column has `unit`."""
        return Cut(self.total * unit, self.begin * unit, self.end * unit)


def whole(total: int) -> Cut:
    """Return all rows or columns."""
    return Cut(total, 0, total)


@dataclass(frozen=True, slots=True)
class HeadsCut:
    """One worker's heads of a layer. Times the size of a head they are rows of the projections."""

    query: Cut
    kv: Cut


@dataclass(frozen=True, slots=True)
class Shard:
    """One of `count` workers that hold a model together; what they compute adds up to the model's."""

    index: int = 0
    count: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this worker adds what may be added only once, such as an output's bias."""
        return self.index == 0

    def cut(self, total: int, unit: int) -> Cut:
        """Return this worker's rows of `total`, in whole units. Shares may be uneven, the last unit smaller.

        Raises ArchitectureError where a worker would have none.
        """
        num_units = -(-total // unit)
        if num_units < self.count:
            raise ArchitectureError(
                f"{total} rows in units of {unit} can't be shared by {self.count} workers"
            )
        begin, end = (num_units * index // self.count for index in (self.index, self.index + 1))
        return Cut(total, begin * unit, min(end * unit, total))

    def cut_heads(self, num_heads: int, num_kv_heads: int) -> HeadsCut:
        """Return this worker's KV heads with their query heads; a KV head may be held by several workers.

        Raises ArchitectureError where the heads can't be shared like that.
        """
        group = num_heads // num_kv_heads
        if self.count <= num_kv_heads:
            kv = self.cut(num_kv_heads, 1)
            return HeadsCut(kv.times(group), kv)
        if not can_share(self.count, num_heads, num_kv_heads):
            *others, last = map(str, list_counts(num_heads, num_kv_heads))
            counts = f"{', '.join(others)} or {last}" if others else last
            raise ArchitectureError(
                f"{num_heads} heads over {num_kv_heads} KV heads {CANNOT_SHARE} {self.count} workers: "
                f"take {counts}"
            )
        query = self.cut(num_heads, 1)
        first = query.begin // group
        return HeadsCut(query, Cut(num_kv_heads, first, first + 1))


def can_share(count: int, num_heads: int, num_kv_heads: int) -> bool:
    """Whether so many workers can share a layer's heads.

    Each has KV heads of its own, or each KV head has as many workers.
    """
    return count <= num_kv_heads or not (count % num_kv_heads or num_heads % count)


def list_counts(num_heads: int, num_kv_heads: int) -> list[int]:
    """Return the counts of workers that can share a layer's heads, as far as one machine has GPUs."""
    return [count for count in range(1, MOST_GPUS + 1) if can_share(count, num_heads, num_kv_heads)]


ALONE = Shard()
"""The only worker, which holds all."""
