import pytest
import torch

from millrace_fit.rotary import Llama3Scaling
from millrace_kernels.linear.reference import linear_reference
from millrace_kernels.rms_norm.reference import rms_norm_reference
from millrace_runtime.layers import rotary_angles

CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("inputs", "outputs"), [(48, 37), (256, 512)])
def test_a_product_gives_a_row_the_same_bits_in_any_company(
    dtype: torch.dtype, inputs: int, outputs: int
) -> None:
    weight, bias = torch.randn(outputs, inputs).to(dtype), torch.randn(outputs).to(dtype)
    x = torch.randn(300, inputs).to(dtype)
    whole = linear_reference(x, weight, bias)
    for begin, end in ((0, 1), (7, 9), (3, 18), (100, 117), (5, 260), (299, 300)):
        assert torch.equal(linear_reference(x[begin:end], weight, bias), whole[begin:end])


def test_rms_norm_brings_rows_to_unit_mean_square() -> None:
    y = rms_norm_reference(torch.randn(5, 64) * 9, torch.ones(64), 1e-6)
    torch.testing.assert_close(y.square().mean(-1), torch.ones(5))


def test_llama3_scaling_keeps_short_waves_and_stretches_long_ones() -> None:
    scaling = Llama3Scaling(8.0, 1.0, 4.0, 8192)
    plain, scaled = (rotary_angles(128, 5e5, 2, s, CPU).sin[1].asin() for s in (None, scaling))
    assert torch.equal(plain[1:20], scaled[1:20])
    torch.testing.assert_close(scaled[-10:], plain[-10:] / 8)
