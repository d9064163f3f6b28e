"""The heads, rows and columns of a model's matrices that one of several workers holds."""

from dataclasses import dataclass

from millrace_kernels.step import Heads, Shares
from millrace_runtime.models.errors import ArchitectureError


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
    """One worker's heads of a layer."""

    query: Cut
    """Rows of the query's projection, and columns of the output's."""
    kv: Cut
    """Rows of the key's projection, and of the value's."""
    heads: Heads


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

    def share(self, total: int) -> Shares | None:
        """Return how all workers share a table's rows; None for the only one.

        Raises ArchitectureError where a worker would have none.
        """
        if self.count == 1:
            return None
        parts = [Shard(index, self.count).cut(total, 1) for index in range(self.count)]
        return Shares(self.index, (0, *(part.end for part in parts)))

    def cut_heads(self, heads: Heads) -> HeadsCut:
        """Return this worker's KV heads with their query heads; a KV head may be held by several workers.

        Raises ArchitectureError where the heads can't be shared like that.
        """
        group = heads.num_heads // heads.num_kv_heads
        if self.count <= heads.num_kv_heads:
            kv = self.cut(heads.num_kv_heads, 1)
            query = kv.times(group)
        elif self.count % heads.num_kv_heads or heads.num_heads % self.count:
            raise ArchitectureError(
                f"{heads.num_heads} heads over {heads.num_kv_heads} KV heads can't be shared by {self.count} "
                "workers: take no more workers than KV heads, or a multiple of them that divides the heads"
            )
        else:
            query = self.cut(heads.num_heads, 1)
            first = query.begin // group
            kv = Cut(heads.num_kv_heads, first, first + 1)
        mine = Heads(query.size, kv.size, heads.head_dim)
        return HeadsCut(query.times(heads.head_dim), kv.times(heads.head_dim), mine)


ALONE = Shard()
"""The only worker, which holds all."""
