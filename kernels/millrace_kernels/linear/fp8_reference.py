"""Products with weights in 8-bit floats, in plain torch: the definition that the kernels follow.

The weights are widened, which is exact, and the inputs stay as they are. README.md has the maths.
"""

import torch
from torch import Tensor

from millrace_kernels.linear.reference import linear_reference
from millrace_kernels.linear.stored import StoredMatrix

_ROWS = 512
"""Outputs widened at once: 8 MB of 4,096 inputs."""


def fp8_linear_reference(x: Tensor, weight: StoredMatrix, bias: Tensor | None) -> Tensor:
    """Return x·Wᵀ + b, float32 [rows, outputs], for W in FP8.

    The sums of each group of inputs are multiplied by the group's scale, and added in the groups' order.
    """
    wide, inputs = x.float(), weight.values.shape[1]
    group = weight.group or inputs
    parts = []
    for at in range(0, len(weight), _ROWS):
        some = weight[at : at + _ROWS]
        total = torch.zeros((len(x), len(some)), device=x.device)
        for number, begin in enumerate(range(0, inputs, group)):
            columns = slice(begin, begin + group)
            sums = linear_reference(wide[:, columns], some.values[:, columns].float(), None)
            total = total + sums * some.scales[:, number]
        parts.append(total)
    product = torch.cat(parts, dim=1)
    return product if bias is None else product + bias.float()
