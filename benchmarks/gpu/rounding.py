"""Weights rounded as quantised checkpoints have them: no checkpoint lies on a disk."""

import torch
from torch import Tensor
from torch.nn import functional

from millrace_kernels.linear.format import Format, Number
from millrace_kernels.linear.stored import StoredMatrix

FORMS = {
    "FP8": Format(Number.FP8),
    "FP8 blocks": Format(Number.FP8, 128),
    "INT8": Format(Number.INT8),
    "W4A16": Format(Number.INT4, 128, has_zeros=True),
}
"""As compressed-tensors, Qwen and DeepSeek, compressed-tensors, and AWQ publish them."""
_LARGEST = {Number.FP8: 448.0, Number.INT8: 127.0, Number.INT4: 7.0}


def bytes_of_weight(form: Format) -> float:
    """Return what a weight takes, with its part of the group's scale and zero point."""
    bits = 4 if form.number is Number.INT4 else 8
    return bits / 8 + (0 if form.group is None else (4 + form.has_zeros) / form.group)


def round_weight(weight: Tensor, form: Format) -> StoredMatrix:
    """Return weights [outputs, inputs] in a form. A scale is 1 where its group has only zeros."""
    outputs, inputs = weight.shape
    size = form.group or inputs
    groups = functional.pad(weight.float(), (0, -inputs % size)).view(outputs, -1, size)
    if form.has_zeros:
        low, high = (
            one.clamp(*bounds) for one, bounds in zip(groups.aminmax(dim=2), _AROUND_ZERO, strict=True)
        )
        scales = (high - low) / 15
        zeros = (-8 - low / _replace_zeros(scales)).round()
    else:
        scales, zeros = groups.abs().amax(2) / _LARGEST[form.number], torch.zeros_like(groups[..., 0])
    scales = _replace_zeros(scales)
    numbers = (groups / scales[..., None] + zeros[..., None]).flatten(1)[:, :inputs]
    return StoredMatrix(
        form.number,
        _cast(numbers, form.number),
        scales,
        form.group,
        zeros.to(torch.int8) if form.has_zeros else None,
        are_inputs_rounded=form.number is not Number.INT4,
    )


_AROUND_ZERO = ((None, 0.0), (0.0, None))
"""The bounds of a group's lowest and highest number: zero is among its levels."""


def _replace_zeros(scales: Tensor) -> Tensor:
    return torch.where(scales == 0, 1.0, scales)


def _cast(numbers: Tensor, number: Number) -> Tensor:
    if number is Number.FP8:
        return numbers.to(torch.float8_e4m3fn)
    least, most = (-8, 7) if number is Number.INT4 else (-127, 127)
    return numbers.round().clamp(least, most).to(torch.int8)
