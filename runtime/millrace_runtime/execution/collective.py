"""A worker's rank, and the collectives of all workers by torch.distributed: NCCL on GPUs, Gloo on CPUs."""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from millrace_fit.shard import ALONE, Shard
from millrace_kernels.exchange.group import Alone, Group, gather_columns, sum_in_order
from millrace_kernels.exchange.memory import Exchange
from millrace_kernels.weights import Shares


@dataclass(frozen=True, slots=True)
class Rank:
    """A worker's number among those that share a model, and how it meets the others."""

    shard: Shard = ALONE
    exchange_fd: int = -1
    """The file through which workers on CPUs exchange their parts."""
    meeting: str = ""
    """The URL where torch's processes find each other: on one machine a file that does not exist yet. Over
    several machines it would be tcp://, with the address that `replica/command.py` reads."""

    def open_exchange(self) -> Exchange | None:
        """Return the exchange of native workers; None for the only worker."""
        if self.shard.count == 1:
            return None
        return Exchange(self.exchange_fd, self.shard.index, self.shard.count)


ALONE_RANK = Rank()
"""The only worker."""


def open_group(rank: Rank, device: torch.device) -> Group:
    """Connect to the other workers and return the group."""
    if rank.shard.count == 1:
        return Alone()
    return NcclGroup(rank, device) if device.type == "cuda" else GlooGroup(rank)


class GlooGroup:
    """Workers on CPUs that can't run the native kernels.

    The order of Gloo's own sum depends on the size. So each worker gets all parts and adds them up.
    """

    def __init__(self, rank: Rank) -> None:
        self._count = rank.shard.count
        _meet("gloo", rank)

    def sum(self, part: Tensor) -> Tensor:
        """Add up the parts in the order of the workers."""
        return sum_in_order(self._gather(part))

    def gather(self, part: Tensor, shares: Shares) -> Tensor:
        """Pad the narrower parts, gather all, and cut them to size again."""
        return _cut(self._gather(_pad_to_widest(part, shares)), shares)

    def _gather(self, part: Tensor) -> list[Tensor]:
        parts = [torch.empty_like(part) for _ in range(self._count)]
        dist.all_gather(parts, part.contiguous())
        return parts


class NcclGroup:
    """Workers with a GPU each. The stream runs their collectives in order with the kernels."""

    def __init__(self, rank: Rank, device: torch.device) -> None:
        self._count = rank.shard.count
        torch.cuda.set_device(device)
        _meet("nccl", rank, device)

    def sum(self, part: Tensor) -> Tensor:
        """Reduce in place."""
        dist.all_reduce(part)
        return part

    def gather(self, part: Tensor, shares: Shares) -> Tensor:
        """Pad the narrower parts, gather all, and cut them to size again."""
        mine = _pad_to_widest(part, shares)
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


def _pad_to_widest(part: Tensor, shares: Shares) -> Tensor:
    """Pad the part to the widest one: collectives need equal sizes."""
    return torch.nn.functional.pad(part, (0, shares.widest - part.shape[1])).contiguous()


def _cut(parts: list[Tensor], shares: Shares) -> Tensor:
    sizes = (end - begin for begin, end in zip(shares.bounds, shares.bounds[1:], strict=False))
    return gather_columns([part[:, :size] for part, size in zip(parts, sizes, strict=True)])
