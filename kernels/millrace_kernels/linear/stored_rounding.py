"""Rounds plain matrices to the formats of checkpoints: for the kernels' small case, and for tests."""

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn import functional

from millrace_kernels.linear.format import Format, Number
from millrace_kernels.linear.stored import StoredMatrix
from millrace_kernels.weights import Experts, Matrix, Packer, Part, require_plain

_LARGEST = {Number.FP8: 448.0, Number.INT8: 127.0, Number.INT4: 7.0}
_TYPES = {Number.FP8: torch.float8_e4m3fn, Number.INT8: torch.int8, Number.INT4: torch.int8}


def round_stored(weight: Tensor, form: Format) -> StoredMatrix:
    """Return a plain matrix [outputs, inputs] in a format of checkpoints. The largest of each group fits."""
    outputs, inputs = weight.shape
    group = form.group or inputs
    groups = functional.pad(weight.float(), (0, -inputs % group)).view(outputs, -1, group)
    lowest, highest = torch.aminmax(groups, dim=2, keepdim=True)
    zeros = None
    if form.has_zeros:
        scales = (highest - lowest) / 15
        zeros = (-8 - lowest / _never_zero(scales)).round().clamp(-8, 8)
    else:
        scales = torch.maximum(highest, -lowest) / _LARGEST[form.number]
    values = groups / _never_zero(scales)
    if form.number is not Number.FP8:
        largest = _LARGEST[form.number]
        values = (values.round() + (0 if zeros is None else zeros)).clamp(-largest - 1, largest)
    kept = None if zeros is None else zeros[..., 0].to(torch.int8)
    rows = values.flatten(1)[:, :inputs].to(_TYPES[form.number])
    return StoredMatrix(form.number, rows, scales[..., 0], form.group, kept)


def _never_zero(scales: Tensor) -> Tensor:
    return torch.where(scales == 0, 1.0, scales)


class RoundingPacker:
    """Rounds what another packer packs, but no tables or routers."""

    def __init__(self, packer: Packer, form: Format) -> None:
        self._packer, self._form = packer, form
        self.dtype, self.device = packer.dtype, packer.device

    def pack(
        self,
        parts: Iterable[Part],
        outputs: int,
        inputs: int,
        bias: Tensor | None,
        form: Format | None = None,
    ) -> Matrix:
        """Round and pack parts, which are plain."""
        return self._packer.pack(self._round(parts), outputs, inputs, bias, form or self._form)

    def pack_gated(
        self,
        parts: Iterable[Part],
        outputs: int,
        inputs: int,
        bias: Tensor | None,
        form: Format | None = None,
    ) -> Matrix:
        """Round and pack a gate and its factor."""
        return self._packer.pack_gated(self._round(parts), outputs, inputs, bias, form or self._form)

    def pack_table(self, rows: Tensor) -> Matrix:
        """Pack a table as it is."""
        return self._packer.pack_table(rows)

    def pack_router(self, rows: Tensor, bias: Tensor | None = None) -> Matrix:
        """Pack a router as it is."""
        return self._packer.pack_router(rows, bias)

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
        """Round and pack experts."""
        return self._packer.pack_experts(
            self._round(parts), num_experts, outputs, inputs, form or self._form, bias=bias
        )

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
        """Round and pack gated experts."""
        return self._packer.pack_gated_experts(
            self._round(parts), num_experts, outputs, inputs, form or self._form, bias=bias
        )

    def _round(self, parts: Iterable[Part]) -> Iterable[StoredMatrix]:
        return (round_stored(require_plain(part), self._form) for part in parts)
