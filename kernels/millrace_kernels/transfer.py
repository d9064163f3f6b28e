"""Numbers between the host and a device, without waiting for what the device still has to do.

A copy from ordinary memory to a GPU waits until the GPU has done all that was launched before, which is the
step before. Only a copy from or to pinned memory is put in line behind it.
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def upload(values: NDArray[Any], device: torch.device) -> Tensor:
    """Return the values on the device; on a CPU the very same memory."""
    host = torch.from_numpy(np.ascontiguousarray(values))
    return host if device.type == "cpu" else pin(host).to(device, non_blocking=True)


def upload_all(arrays: Sequence[NDArray[np.int64]], device: torch.device) -> list[Tensor]:
    """Return int64 [any] arrays on the device, by one copy: each copy takes as long as a small kernel."""
    together = upload(np.concatenate(arrays), device)
    ends = accumulate((len(array) for array in arrays), initial=0)
    return [together[begin:end] for begin, end in pairwise(ends)]


def download(values: Tensor) -> Tensor:
    """Return host memory into which the values come once the device is there; on a CPU the values.

    Whoever reads it waits for an event that was recorded after this call.
    """
    if values.device.type == "cpu":
        return values
    return allocate_pinned(values).copy_(values, non_blocking=True)


def pin(host: Tensor) -> Tensor:
    """Return a copy in pinned memory. torch gives it to others only after the copies from it are done."""
    return host.pin_memory()


def allocate_pinned(like: Tensor) -> Tensor:
    """Return pinned memory of this shape and type."""
    return torch.empty(like.shape, dtype=like.dtype, pin_memory=True)
