"""The heads, rows and columns of a model's matrices that one of several workers holds."""

from dataclasses import dataclass
from typing import Final

from millrace_fit.errors import ArchitectureError

MOST_GPUS: Final = 16
"""The most GPUs of one machine."""
CANNOT_SHARE: Final = "can't be shared by"
"""The words about heads that can't be shared. The operator recognises them in the last line of a log."""


@dataclass(frozen=True, slots=True)
class Cut:
    """The rows or columns from `begin` to `end`, of `total`."""

    total: int
    begin: int
    end: int

    @property
    def size(self) -> int:
        """The count of these rows or columns."""
        return self.end - self.begin

    def times(self, unit: int) -> "Cut":
        """Return the same part in smaller units: each row or column has `unit` of them."""
        return Cut(self.total * unit, self.begin * unit, self.end * unit)


def whole(total: int) -> Cut:
    """Return all rows or columns."""
    return Cut(total, 0, total)


@dataclass(frozen=True, slots=True)
class HeadsCut:
    """One worker's heads of a layer. Multiplied by a head's size they are rows of the projections."""

    query: Cut
    kv: Cut


@dataclass(frozen=True, slots=True)
class Shard:
    """One of `count` workers that share a model. Their results add up to the model's."""

    index: int = 0
    count: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this worker adds the values that only one may add, such as an output's bias."""
        return self.index == 0

    def cut(self, total: int, unit: int) -> Cut:
        """Return this worker's rows of `total`, in whole units. Shares may be uneven, the last unit smaller.

        Raises ArchitectureError if a worker would have none.
        """
        num_units = -(-total // unit)
        if num_units < self.count:
            raise ArchitectureError(
                f"{total} rows in units of {unit} can't be shared by {self.count} workers"
            )
        begin, end = (num_units * index // self.count for index in (self.index, self.index + 1))
        return Cut(total, begin * unit, min(end * unit, total))

    def cut_heads(self, num_heads: int, num_kv_heads: int) -> HeadsCut:
        """Return this worker's KV heads with their query heads. Several workers may have the same KV head.

        Raises ArchitectureError if the heads can't be shared so.
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

    They can if each has KV heads of its own, or if each KV head has the same number of workers.
    """
    return count <= num_kv_heads or not (count % num_kv_heads or num_heads % count)


def list_counts(num_heads: int, num_kv_heads: int) -> list[int]:
    """Return the counts of workers that can share a layer's heads, up to the GPUs of one machine."""
    return [count for count in range(1, MOST_GPUS + 1) if can_share(count, num_heads, num_kv_heads)]


ALONE = Shard()
"""The only worker, which holds all."""
