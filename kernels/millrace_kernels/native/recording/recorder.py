"""Records a model's forward: a Step that computes nothing, on tensors without memory."""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from millrace_kernels.linear.format import GROUP, Format
from millrace_kernels.native import abi
from millrace_kernels.native.errors import RecordError
from millrace_kernels.native.recording.checks import (
    OF_EXPERTS,
    OF_PRODUCTS,
    OF_RESIDUALS,
    find_experts,
    find_packed,
    require_angles,
    require_choice,
    require_norms,
    require_rows,
    require_sinks,
)
from millrace_kernels.native.recording.record import Record, Recorded, RecordedRoutes, Register, Registers
from millrace_kernels.native.weights.packing import PackedExperts, PackedMatrix
from millrace_kernels.step import Angles, CacheLayer, HeadNorms, Heads, Routes, Routing
from millrace_kernels.weights import Experts, Matrix, Shares, SideBySide, parts_of

_OVER_TOKENS = {abi.Kind.EMBED, abi.Kind.ROTARY_KV_WRITE, abi.Kind.ATTENTION}


@dataclass
class Recorder:
    """A `Step` that records. Residuals are float32; inputs of products are of the model's type."""

    dtype: torch.dtype
    num_workers: int = 1
    operations: list[Recorded] = field(default_factory=list)
    num_forward: int = 0
    num_exchanges: int = 0
    _registers: Registers = field(default_factory=Registers)
    _rounded: dict[Register, dict[bytes, Tensor]] = field(default_factory=dict)
    """By register, and then by the order of inputs: its rows, rounded for quantised products."""

    def embed(self, table: Matrix, shares: Shares | None = None) -> Tensor:
        """Record a lookup of the tokens' rows, as residuals."""
        if isinstance(table, SideBySide):
            raise RecordError("an embedding is one matrix: pack it as a table")
        packed = find_packed(table, is_gated=False)
        if packed.form not in {Format.DENSE, Format.INT8} or packed.order is not None:
            raise RecordError(f"an embedding in {packed.form} has no kernel: pack it as a table")
        total = Register(packed.inputs, torch.float32, is_drawn=False)
        if shares is None or self.num_workers == 1:
            return self._write(Recorded(abi.Kind.EMBED, None, total, packed))
        part = self._part(packed.inputs)
        self._append(Recorded(abi.Kind.EMBED, None, part, packed, length=shares.begin))
        return self._write(Recorded(abi.Kind.SUM, part, total))

    def rms_norm(self, x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        """Record a norm of residuals, into the model's type."""
        source, width = self._registers.find(x), weight.shape[0]
        require_rows(source, torch.float32, width, f"rms_norm: {OF_RESIDUALS}")
        y = Register(width, self.dtype, source.is_drawn)
        return self._write(Recorded(abi.Kind.RMS_NORM, source, y, weight=weight, number=epsilon))

    def linear(self, x: Tensor, weight: Matrix) -> Tensor:
        """Record a product, into the model's type."""
        return self._multiply(abi.Kind.LINEAR, x, weight, weight.outputs, self.dtype)

    def linear_add(self, x: Tensor, weight: Matrix, residual: Tensor) -> Tensor:
        """Record a product, added to the residual in place."""
        register = self._take(residual)
        if self.num_workers == 1:
            self._append_products(abi.Kind.LINEAR_ADD, x, weight, register)
        else:
            part = self._part(weight.outputs, is_drawn=register.is_drawn)
            self._append_products(abi.Kind.LINEAR, x, weight, part)
            self._append(Recorded(abi.Kind.SUM_ADD, part, register))
        require_rows(register, torch.float32, weight.outputs, f"linear_add's residual: {OF_RESIDUALS}")
        return self._registers.name(register)

    def linear_sum(self, x: Tensor, weight: Matrix) -> Tensor:
        """Record a product as residuals, summed over the workers."""
        if self.num_workers == 1:
            return self._multiply(abi.Kind.LINEAR, x, weight, weight.outputs, torch.float32)
        is_drawn = self._registers.find(x).is_drawn
        part = self._part(weight.outputs, is_drawn=is_drawn)
        self._append_products(abi.Kind.LINEAR, x, weight, part)
        total = Register(weight.outputs, torch.float32, is_drawn)
        return self._write(Recorded(abi.Kind.SUM, part, total))

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        """Record a sum, in place of the residual."""
        source, register = self._registers.find(x), self._take(residual)
        require_rows(register, torch.float32, source.width, f"add's residual: {OF_RESIDUALS}")
        return self._write(Recorded(abi.Kind.ADD, source, register))

    def linear_silu_mul(self, x: Tensor, weight: Matrix) -> Tensor:
        """Record a product gated by SiLU."""
        return self._gate(abi.Kind.LINEAR_SILU_MUL, x, weight)

    def linear_gelu_mul(self, x: Tensor, weight: Matrix) -> Tensor:
        """Record a product gated by GELU."""
        return self._gate(abi.Kind.LINEAR_GELU_MUL, x, weight)

    def route(self, x: Tensor, router: Matrix, routing: Routing) -> Routes:
        """Record the scores as a product into float32, and the choice."""
        require_choice(routing, router)
        scores = self._registers.find(
            self._multiply(abi.Kind.LINEAR, x, router, router.outputs, torch.float32)
        )
        y = Register(2 * routing.num_chosen, torch.float32, scores.is_drawn)
        routes = self._write(Recorded(abi.Kind.ROUTE, scores, y, parts=routing.num_chosen, routing=routing))
        return RecordedRoutes(routes, router.outputs, routing.num_chosen)

    def experts_silu_mul(
        self, x: Tensor, routes: Routes, weight: Experts, limit: float | None = None
    ) -> Tensor:
        """Record the gated products of each row's experts."""
        packed = find_experts(weight, routes, is_gated=True)
        y = Register(routes.num_chosen * packed.outputs // 2, self.dtype, self._registers.find(x).is_drawn)
        self._append_experts(
            abi.Kind.EXPERTS_SILU_MUL, self._fit(x, packed.matrix), routes, packed, y, number=limit or 0.0
        )
        return self._registers.name(y)

    def experts_add(self, h: Tensor, routes: Routes, weight: Experts, residual: Tensor) -> Tensor:
        """Record the experts' weighted products, each added to the residual in place."""
        packed = find_experts(weight, routes, is_gated=False)
        fitting, register = self._fit(h, packed.matrix, routes.num_chosen, OF_EXPERTS), self._take(residual)
        if self.num_workers == 1:
            self._append_experts(abi.Kind.EXPERTS_ADD, fitting, routes, packed, register)
        else:
            part = self._part(weight.outputs, is_drawn=register.is_drawn)
            self._append_experts(abi.Kind.EXPERTS_SUM, fitting, routes, packed, part)
            self._append(Recorded(abi.Kind.SUM_ADD, part, register))
        require_rows(register, torch.float32, weight.outputs, f"experts_add's residual: {OF_RESIDUALS}")
        return self._registers.name(register)

    def rotary_kv_write(
        self,
        qkv: Tensor,
        layer: CacheLayer,
        heads: Heads,
        angles: Angles | None,
        norms: HeadNorms | None = None,
    ) -> Tensor:
        """Record norms, rotation and the KV write as one operation."""
        head_dim, num_kv = heads.head_dim, 2 * heads.num_kv_heads
        advice = "rotary_kv_write: pass the result of linear for queries, keys and values"
        source = self._registers.find(qkv)
        require_rows(source, self.dtype, (heads.num_heads + num_kv) * head_dim, advice)
        query = Register(heads.num_heads * head_dim, self.dtype, source.is_drawn)
        if angles is not None:
            require_angles(angles.table, head_dim)
        if norms is not None:
            require_norms(norms, head_dim, self.dtype)
        return self._write(
            Recorded(
                abi.Kind.ROTARY_KV_WRITE,
                source,
                query,
                weight=angles.table if angles else None,
                number=norms.epsilon if norms else 0.0,
                layer=layer,
                heads=heads,
                norms=norms,
                length=angles.table.shape[1] if angles else 0,
            )
        )

    def attention(
        self, query: Tensor, layer: CacheLayer, heads: Heads, scale: float, sinks: Tensor | None = None
    ) -> Tensor:
        """Record attention."""
        require_sinks(sinks, heads)
        width = heads.num_heads * heads.head_dim
        source = self._registers.find(query)
        require_rows(source, self.dtype, width, "attention: pass the result of rotary_kv_write")
        y = Register(width, self.dtype, source.is_drawn)
        recorded = Recorded(abi.Kind.ATTENTION, source, y, weight=sinks, number=scale)
        return self._write(replace(recorded, layer=layer, heads=heads))

    def logits(self, x: Tensor, weight: Matrix, shares: Shares | None = None) -> Tensor:
        """Record a product, into float32."""
        if shares is None or self.num_workers == 1:
            return self._multiply(abi.Kind.LINEAR, x, weight, weight.outputs, torch.float32)
        part = self._part(weight.outputs, shares.widest, is_drawn=True)
        self._append_products(abi.Kind.LINEAR, x, weight, part)
        scores = Register(shares.total, torch.float32, is_drawn=True)
        return self._write(Recorded(abi.Kind.GATHER, part, scores, shares=shares))

    def select(self, hidden: Tensor) -> Tensor:
        """End the forward, and return the rows that draw. No earlier tensor can be used any more."""
        register = self._registers.find(hidden)
        self._registers.clear()
        self.num_forward = len(self.operations)
        chosen = Register(register.width, register.dtype, is_drawn=True)
        return self._write(Recorded(abi.Kind.SELECT, register, chosen))

    def output(self, tensor: Tensor) -> Register:
        """Return the register of a tensor."""
        return self._registers.find(tensor)

    def _take(self, residual: Tensor) -> Register:
        """Return the register of a residual that is overwritten. Its tensor can't be used any more."""
        register = self._registers.take(residual)
        self._rounded.pop(register, None)
        return register

    def _part(self, width: int, widest: int | None = None, *, is_drawn: bool = False) -> Register:
        """Return a register for the next exchange, where the other workers read it."""
        self.num_exchanges += 1
        return Register(width, torch.float32, is_drawn, self.num_exchanges - 1, widest or width)

    def _gate(self, kind: abi.Kind, x: Tensor, weight: Matrix) -> Tensor:
        if len(parts_of(weight)) > 1:
            raise RecordError("a gate and its factor must have one format: pack them together")
        return self._multiply(kind, x, weight, weight.outputs // 2, self.dtype)

    def _multiply(self, kind: abi.Kind, x: Tensor, weight: Matrix, width: int, dtype: torch.dtype) -> Tensor:
        y = Register(width, dtype, self._registers.find(x).is_drawn)
        self._append_products(kind, x, weight, y)
        return self._registers.name(y)

    def _append_products(self, kind: abi.Kind, x: Tensor, weight: Matrix, y: Register) -> None:
        """Multiply by each part of the weight, into consecutive columns of y."""
        column = 0
        for part in parts_of(weight):
            packed = find_packed(part, is_gated=kind in abi.GATES)
            self._append(Recorded(kind, self._registers.find(self._fit(x, packed)), y, packed, column=column))
            column += packed.outputs

    def _append_experts(
        self,
        kind: abi.Kind,
        x: Tensor,
        routes: Routes,
        experts: PackedExperts,
        y: Register,
        *,
        number: float = 0.0,
    ) -> None:
        assert isinstance(routes, RecordedRoutes), "routes of another path"
        product = Recorded(
            kind, self._registers.find(x), y, experts.matrix, number=number, parts=routes.num_chosen
        )
        self._append(
            replace(product, routes=self._registers.find(routes.name), num_experts=experts.num_experts)
        )

    def _fit(self, x: Tensor, matrix: PackedMatrix, parts: int = 1, advice: str = OF_PRODUCTS) -> Tensor:
        """Return x in the matrix's input type; for integers x is rounded, once for all products of one order.

        x may have several parts, each with the matrix's inputs.
        """
        register = self._registers.find(x)
        dtype = register.dtype if matrix.form.rounds_inputs else matrix.dtype
        require_rows(register, dtype, parts * matrix.inputs, f"a product: {advice}")
        if not matrix.form.rounds_inputs:
            return x
        rounded, order = self._rounded.setdefault(register, {}), matrix.order
        key = b"" if order is None else order.numpy().tobytes()
        if key not in rounded:
            num_bytes = parts * -(-matrix.inputs // GROUP) * ctypes.sizeof(abi.Group)
            groups = Register(num_bytes, torch.int8, register.is_drawn)
            operation = Recorded(abi.Kind.QUANTIZE, register, groups, parts=parts, order=order)
            rounded[key] = self._write(operation)
        return rounded[key]

    def _write(self, operation: Recorded) -> Tensor:
        self._append(operation)
        return self._registers.name(operation.y)

    def _append(self, operation: Recorded) -> None:
        if self.num_forward and operation.kind in _OVER_TOKENS:
            raise RecordError(
                f"{operation.kind.name} has rows for all tokens, but logits only for the rows that draw"
            )
        for register in operation.registers:
            register.last_use = len(self.operations)
        self.operations.append(operation)


def record(
    forward: Callable[[Recorder], Tensor],
    logits: Callable[[Tensor, Recorder], Tensor],
    dtype: torch.dtype,
    num_workers: int = 1,
) -> Record:
    """Return a record of a model's two functions, one of `num_workers` parts. Raises RecordError."""
    recorder = Recorder(dtype, num_workers)
    hidden = forward(recorder)
    scores = logits(recorder.select(hidden), recorder)
    return Record(recorder.operations, recorder.num_forward, recorder.output(scores), dtype)
