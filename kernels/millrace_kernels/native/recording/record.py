"""A recorded forward: its operations and the rows that they read and write. It has no memory yet."""

from dataclasses import dataclass

import torch
from torch import Tensor

from millrace_kernels.exchange.memory import LINE
from millrace_kernels.native import abi
from millrace_kernels.native.errors import RecordError
from millrace_kernels.native.weights.packing import PackedMatrix
from millrace_kernels.step import CacheLayer, HeadNorms, Heads, Routing
from millrace_kernels.weights import Shares

TYPES = {
    torch.float32: abi.Type.FLOAT32,
    torch.bfloat16: abi.Type.BFLOAT16,
    torch.int8: abi.Type.GROUPS,
}


@dataclass(eq=False, slots=True)
class Register:
    """Rows in the workspace, one for each token of a step, or for each that draws."""

    width: int
    dtype: torch.dtype
    is_drawn: bool
    """Whether it has rows only for tokens that draw."""
    exchange: int | None = None
    """The exchange of a step in which other workers read it; None: in none."""
    widest: int = 0
    """In an exchange: the largest width of a worker's part."""
    last_use: int = 0
    """The last operation that reads or writes it."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """A recorded operation, before its registers have places."""

    kind: abi.Kind
    x: Register | None
    y: Register
    matrix: PackedMatrix | None = None
    weight: Tensor | None = None
    number: float = 0.0
    layer: CacheLayer | None = None
    """None: it uses no KV cache."""
    heads: Heads | None = None
    norms: HeadNorms | None = None
    length: int = 0
    column: int = 0
    """The first written column of y."""
    shares: Shares | None = None
    """The shares of the workers whose columns it gathers."""
    routes: Register | None = None
    """The chosen experts of each row."""
    parts: int = 1
    """The parts of a row: its experts', or the parts that are rounded separately."""
    num_experts: int = 0
    """The matrices that follow each other in `matrix`."""
    order: Tensor | None = None
    """int32 [inputs]: the input that each rounded column is; None: as they come."""
    routing: Routing | None = None

    @property
    def registers(self) -> tuple[Register, ...]:
        """All that it reads or writes."""
        return tuple(one for one in (self.x, self.y, self.routes) if one is not None)

    def count_sorted_bytes(self, num_tokens: int) -> int:
        """Return the bytes in which a thread sorts rows by expert and gathers some, as in experts/cpu.cpp."""
        if self.routes is None or self.x is None:
            return 0
        row = self.x.width * self.x.dtype.itemsize + 2 * LINE
        gathered = abi.EXPERT_ROWS * (abi.SUMS * 4 + row + 16) + abi.WIDE_BYTES
        return gathered + 4 * (self.num_experts + num_tokens * self.parts) + 2 * LINE


@dataclass(frozen=True, slots=True)
class RecordedRoutes:
    """Rows of the experts' numbers and of their weights."""

    name: Tensor
    num_experts: int
    num_chosen: int


@dataclass(frozen=True, slots=True)
class Record:
    """A model's recorded forward and logits."""

    operations: list[Recorded]
    num_forward: int
    """The number of operations that compute hidden states; the others compute logits."""
    logits: Register
    dtype: torch.dtype
    """The model's type."""

    @property
    def heads_by_layer(self) -> dict[int, Heads]:
        """Each layer's heads."""
        found = ((one.layer, one.heads) for one in self.operations)
        return {layer.number: heads for layer, heads in found if layer and heads}

    @property
    def num_groups(self) -> int:
        """The number of KV groups."""
        return max((one.layer.group + 1 for one in self.operations if one.layer), default=0)

    @property
    def num_positions(self) -> int | None:
        """The number of positions that every rotary table has; None without a table."""
        tables = (one for one in self.operations if one.kind is abi.Kind.ROTARY_KV_WRITE and one.length)
        return min((one.length for one in tables), default=None)


META = torch.device("meta")
_NOT_MADE = "no operation of the step made it, or it is older than the choice of the rows that draw"


class Registers:
    """Owns the tensors without memory that a recorder has returned, each for a register.

    `find` and `take` raise RecordError for a tensor that is not, or no longer, among them.
    """

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
