"""Weights that the campaign on a GPU rounds as checkpoints have them."""

import pytest
import torch

from benchmarks.gpu.quantized_linear import pack
from benchmarks.gpu.rounding import FORMS, bytes_of_weight, round_weight

pytestmark = pytest.mark.reads("benchmarks/gpu", "kernels")
ERRORS = {"FP8": 0.03, "FP8 blocks": 0.03, "INT8": 0.01, "W4A16": 0.11}
"""Of the whole, over its size, for normal weights: half of a level, and more for the few in the tails."""


@pytest.mark.parametrize("name", FORMS)
def test_rounded_weights_are_close_and_take_the_bytes_that_are_counted(name: str) -> None:
    weight = torch.randn(64, 512)
    weight[3], weight[5, :128] = 0, 0
    found = round_weight(weight, FORMS[name])
    assert found.form == FORMS[name]
    assert (found.widen() - weight).norm() / weight.norm() < ERRORS[name]
    assert not found.widen()[3].any()
    scales = 0 if FORMS[name].group else 64 * 4  # an output's own scale is left out
    assert pack(weight, name).nbytes == 64 * 512 * bytes_of_weight(FORMS[name]) + scales
