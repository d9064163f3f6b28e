"""What every step is given: the device, and whether this run is a dry one."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch

from benchmarks.gpu.device import Device
from benchmarks.gpu.rows import Row

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Bench:
    """A run's device, sizes and folder."""

    device: Device
    is_dry_run: bool
    folder: Path
    """Where a step may leave files beside the JSON."""
    shared: Path
    """Where a step leaves files for later steps of its part: in memory, and gone after the part."""

    @property
    def where(self) -> torch.device:
        """Where tensors go."""
        return self.device.torch_device

    def sized(self, real: Value, dry: Value) -> Value:
        """Return the size for a GPU, or the tiny one that only shows that the step runs."""
        return dry if self.is_dry_run else real


Step = Callable[[Bench], Iterator[Row]]
"""Yields rows as they come, so that a step that breaks off has reported something."""
