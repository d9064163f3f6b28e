"""The tensors without memory that stand for the rows of a record."""

import torch
from torch import Tensor

from millrace_kernels.native.errors import RecordError
from millrace_kernels.native.recording.record import Register

META = torch.device("meta")
_NOT_MADE = "no operation of the step made it, or it is older than the choice of the rows that draw"


class Registers:
    """Owner of the tensors that a recorder has returned. Every method raises RecordError for another one."""

    def __init__(self) -> None:
        self._registers: dict[int, Register] = {}
        self._tensors: list[Tensor] = []
        """Kept alive, so that no id is reused."""

    def name(self, register: Register) -> Tensor:
        """Return a tensor that stands for the register."""
        tensor = torch.empty((1, register.width), dtype=register.dtype, device=META)
        self._tensors.append(tensor)
        self._registers[id(tensor)] = register
        return tensor

    def find(self, tensor: Tensor) -> Register:
        """Return the register of a tensor."""
        register = self._registers.get(id(tensor))
        if register is None:
            raise RecordError(f"a tensor can't be used: {_NOT_MADE}")
        return register

    def take(self, residual: Tensor) -> Register:
        """Return the register of a residual. Its tensor can't be used any more."""
        register = self._registers.pop(id(residual), None)
        if register is None:
            raise RecordError(f"a residual is used again, or {_NOT_MADE}")
        return register

    def clear(self) -> None:
        """Forget all tensors."""
        self._registers.clear()
