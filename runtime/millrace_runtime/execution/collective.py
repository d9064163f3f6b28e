"""A worker's rank, and the collectives of all workers by torch.distributed: NCCL on GPUs, Gloo on CPUs."""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from millrace_fit.shard import ALONE, Shard
from millrace_kernels.exchange.group import Alone, Group, gather_columns, sum_in_order
from millrace_kernels.exchange.memory import Exchange
from millrace_kernels.step import Shares


@dataclass(frozen=True, slots=True)
class Rank:
    """Which worker this is, and where it meets the others."""

    shard: Shard = ALONE
    exchange_fd: int = -1
    """The file that workers on CPUs exchange their parts in."""
    meeting: str = ""
    """The URL where torch's processes find each other: on one machine a file that does not exist yet. Over
    several it would be tcp://, with the address that `replica/command.py` reads."""

    def open_exchange(self) -> Exchange | None:
        """Return the exchange of native workers; None for the only worker."""
        if self.shard.count == 1:
            return None
        return Exchange(self.exchange_fd, self.shard.index, self.shard.count)


ALONE_RANK = Rank()
"""The only worker."""


def open_group(rank: Rank, device: torch.device) -> Group:
    """Return the worker's group, having met the others."""
    if rank.shard.count == 1:
        return Alone()
    return NcclGroup(rank, device) if device.type == "cuda" else GlooGroup(rank)


class GlooGroup:
    """Workers on CPUs, where the native kernels can't run.

    Gloo's own sum has an order that depends on the size: so each worker gets all parts, and adds them up.
    """

    def __init__(self, rank: Rank) -> None:
        self._count = rank.shard.count
        _meet("gloo", rank)

    def sum(self, part: Tensor) -> Tensor:
        """Add the parts up in the order of the workers."""
        return sum_in_order(self._gather(part))

    def gather(self, part: Tensor, shares: Shares) -> Tensor:
        """Fill narrower parts up, and cut them to size again."""
        return _cut(self._gather(_fill_up(part, shares)), shares)

    def _gather(self, part: Tensor) -> list[Tensor]:
        parts = [torch.empty_like(part) for _ in range(self._count)]
        dist.all_gather(parts, part.contiguous())
        return parts


class NcclGroup:
    """Workers with a GPU each. Their work is launched on the stream, in order with the kernels."""

    def __init__(self, rank: Rank, device: torch.device) -> None:
        self._count = rank.shard.count
        torch.cuda.set_device(device)
        _meet("nccl", rank, device)

    def sum(self, part: Tensor) -> Tensor:
        """Reduce in place."""
        dist.all_reduce(part)
        return part

    def gather(self, part: Tensor, shares: Shares) -> Tensor:
        """Fill narrower parts up, and cut them to size again."""
        mine = _fill_up(part, shares)
        parts = mine.new_empty((self._count, *mine.shape))
        dist.all_gather_into_tensor(parts, mine)
        return _cut(list(parts), shares)


def _meet(backend: str, rank: Rank, device: torch.device | None = None) -> None:
    dist.init_process_group(
        backend,
        init_method=rank.meeting,
        rank=rank.shard.index,
        world_size=rank.shard.count,
        device_id=device,
    )


def _fill_up(part: Tensor, shares: Shares) -> Tensor:
    """Make the part as wide as the widest, which collectives of equal sizes need."""
    return torch.nn.functional.pad(part, (0, shares.widest - part.shape[1])).contiguous()


def _cut(parts: list[Tensor], shares: Shares) -> Tensor:
    sizes = (end - begin for begin, end in zip(shares.bounds, shares.bounds[1:], strict=False))
    return gather_columns([part[:, :size] for part, size in zip(parts, sizes, strict=True)])
