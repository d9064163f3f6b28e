import pytest
import torch

from millrace_runtime.layers.embedding import Embedding, Head
from millrace_runtime.layers.linear import Linear
from millrace_runtime.layers.norm import RMSNorm
from millrace_runtime.layers.rotary import Llama3Scaling, Rotary

CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("inputs", "outputs"), [(48, 37), (256, 512)])
def test_a_linears_row_has_the_same_bits_in_any_company(
    dtype: torch.dtype, inputs: int, outputs: int
) -> None:
    linear = Linear(torch.randn(outputs, inputs).to(dtype), torch.randn(outputs).to(dtype))
    x = torch.randn(300, inputs).to(dtype)
    whole = linear(x)
    for begin, end in ((0, 1), (7, 9), (3, 18), (100, 117), (5, 260), (299, 300)):
        assert torch.equal(linear(x[begin:end]), whole[begin:end])


def test_a_head_emits_float32() -> None:
    weight = torch.randn(10, 4).bfloat16()
    assert Head(weight)(torch.randn(2, 4).bfloat16()).dtype == torch.float32
    assert torch.equal(Embedding(weight)(torch.tensor([3])), weight[3:4])


def test_rms_norm_brings_rows_to_unit_mean_square() -> None:
    y = RMSNorm(torch.ones(64), 1e-6)(torch.randn(5, 64) * 9)
    torch.testing.assert_close(y.square().mean(-1), torch.ones(5))


def test_llama3_scaling_keeps_short_waves_and_stretches_long_ones() -> None:
    scaling = Llama3Scaling(8.0, 1.0, 4.0, 8192)
    plain, scaled = (Rotary(128, 5e5, 2, CPU, s)(torch.tensor([1])) for s in (None, scaling))
    angles, stretched = plain[1].asin()[0], scaled[1].asin()[0]
    assert torch.equal(angles[1:20], stretched[1:20])
    torch.testing.assert_close(stretched[-10:], angles[-10:] / 8)
