"""Packs matrices for the operations of `tensor_step.py`: as tensors, or quantised as a device reads them."""

from collections.abc import Iterable

import torch
from torch import Tensor

from millrace_kernels.linear.format import Format
from millrace_kernels.linear.gpu.choice import Capability
from millrace_kernels.linear.gpu.matrix import find_capability, pack_for_gpu
from millrace_kernels.linear.stored import stack
from millrace_kernels.tensor_matrices import (
    DenseMatrix,
    RoundedMatrix,
    TensorExperts,
    TensorMatrix,
    keep_stored,
    round_parts,
)
from millrace_kernels.weights import Experts, Matrix, Part, require_plain, require_stored


class TensorPacker:
    """Packs a matrix as one tensor, or as quantised numbers and scales."""

    def __init__(
        self,
        dtype: torch.dtype,
        device: torch.device,
        form: Format = Format.DENSE,
        capability: Capability | None = None,
    ) -> None:
        """`form` is the format to which plain numbers are rounded.

        Quantised matrices are packed for a GPU of the capability; None: for the device.
        """
        self.dtype, self.device, self.form = dtype, device, form
        self._capability = capability

    def pack(
        self,
        parts: Iterable[Part],
        outputs: int,
        inputs: int,
        bias: Tensor | None,
        form: Format | None = None,
    ) -> Matrix:
        """Pack parts as one matrix, quantised ones as they are and others in the packer's format."""
        if form is None:
            return self._pack(self.form, parts, outputs, inputs, bias)
        return self._keep(parts, outputs, bias)

    def pack_gated(
        self,
        parts: Iterable[Part],
        outputs: int,
        inputs: int,
        bias: Tensor | None,
        form: Format | None = None,
    ) -> Matrix:
        """Pack gate and factor like any other matrix."""
        return self.pack(parts, outputs, inputs, bias, form)

    def pack_table(self, rows: Tensor) -> Matrix:
        """Pack a table in the format of tables."""
        return self._pack(self.form.of_tables, [rows], rows.shape[0], rows.shape[1], None)

    def pack_router(self, rows: Tensor, bias: Tensor | None = None) -> Matrix:
        """Pack a router as one tensor."""
        return self._pack(Format.DENSE, [rows], rows.shape[0], rows.shape[1], bias)

    def pack_experts(
        self,
        parts: Iterable[Part],
        num_experts: int,
        outputs: int,
        inputs: int,
        form: Format | None = None,
        *,
        bias: Tensor | None = None,
    ) -> Experts:
        """Pack the experts one below the other."""
        total, flat = num_experts * outputs, None if bias is None else bias.flatten()
        if form is not None:
            return TensorExperts(self._keep(parts, total, flat), num_experts)
        return TensorExperts(self._pack(self.form, parts, total, inputs, flat), num_experts)

    def pack_gated_experts(
        self,
        parts: Iterable[Part],
        num_experts: int,
        outputs: int,
        inputs: int,
        form: Format | None = None,
        *,
        bias: Tensor | None = None,
    ) -> Experts:
        """Pack gates and factors like any other experts."""
        return self.pack_experts(parts, num_experts, outputs, inputs, form, bias=bias)

    def _keep(self, parts: Iterable[Part], outputs: int, bias: Tensor | None) -> TensorMatrix:
        quantised = map(require_stored, parts)
        capability = self._capability or find_capability(self.device)
        if capability is not None:
            return pack_for_gpu(quantised, outputs, self._own(bias), self.device, capability)
        stored = [part.to(self.device) for part in quantised]
        return keep_stored(stack(stored), self._own(bias), self.dtype)

    def _own(self, bias: Tensor | None) -> Tensor | None:
        return None if bias is None else bias.to(self.device, self.dtype)

    def _pack(
        self, form: Format, parts: Iterable[Part], outputs: int, inputs: int, bias: Tensor | None
    ) -> DenseMatrix | RoundedMatrix:
        plain = map(require_plain, parts)
        if form != Format.DENSE:
            return RoundedMatrix(
                round_parts(form, plain, outputs, inputs), self._own(bias), inputs, self.dtype
            )
        weight = torch.empty((outputs, inputs), dtype=self.dtype, device=self.device)
        begin = 0
        for part in plain:
            weight[begin : begin + part.shape[0]] = part
            begin += part.shape[0]
        return DenseMatrix(weight, self._own(bias))
