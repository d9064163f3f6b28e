"""Where a model's constructor takes its weights from."""

from typing import Protocol

import torch
from torch import Tensor


class Weights(Protocol):
    """A checkpoint's tensors by name, in the type and on the device that the model runs with."""

    device: torch.device

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Return a tensor of its own memory. Raises ModelError where it is missing or of another shape."""
