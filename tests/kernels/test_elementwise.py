from collections.abc import Callable
from typing import Any

import pytest
import torch

from millrace_kernels.kv_write.reference import kv_write_reference
from millrace_kernels.rms_norm.reference import rms_norm_reference
from millrace_kernels.rotary.reference import rotary_reference
from millrace_kernels.silu_mul.reference import silu_mul_reference

Load = Callable[[str], Any]
DTYPES = [torch.float32, torch.bfloat16]


def close(mine: torch.Tensor, expected: torch.Tensor) -> None:
    bound = 1e-5 if expected.dtype == torch.float32 else 2e-2
    torch.testing.assert_close(mine, expected, atol=bound, rtol=bound)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "width"), [(1, 1), (3, 37), (2, 64)])
def test_rms_norm(load_kernel: Load, rows: int, width: int, dtype: torch.dtype) -> None:
    poisoned = torch.full((rows, width + 5), float("nan"), dtype=dtype)
    x, weight = poisoned[:, :width], torch.randn(width).to(dtype)
    x.copy_(torch.randn(rows, width))
    expected = rms_norm_reference(x, weight, 1e-5)
    close(load_kernel("rms_norm")(x, weight, 1e-5), expected)
    square = x.double().square().mean(-1, keepdim=True)
    close(expected, (x.double() / (square + 1e-5).sqrt() * weight.double()).to(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_rotary(load_kernel: Load, dtype: torch.dtype) -> None:
    poisoned = torch.full((3, 7, 12), float("nan"), dtype=dtype)
    x = poisoned[:, 1:6]
    x.copy_(torch.randn(3, 5, 12))
    angles = torch.randn(3, 6)
    expected = rotary_reference(x, angles.cos(), angles.sin())
    close(load_kernel("rotary")(x, angles.cos(), angles.sin()), expected)
    plane = torch.complex(x[..., :6].float(), x[..., 6:].float())
    turned = plane * torch.polar(torch.ones(3, 1, 6), angles[:, None])
    close(expected, torch.cat((turned.real, turned.imag), -1).to(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "width"), [(1, 1), (3, 37), (2, 1030)])
def test_silu_mul(load_kernel: Load, rows: int, width: int, dtype: torch.dtype) -> None:
    gate_up = (torch.randn(rows, 2 * width) * 4).to(dtype)
    expected = silu_mul_reference(gate_up)
    close(load_kernel("silu_mul")(gate_up), expected)
    gate, up = gate_up.float().chunk(2, dim=-1)
    close(expected, (torch.nn.functional.silu(gate) * up).to(dtype))


def test_silu_of_very_negative_gates_is_zero_not_nan() -> None:
    gate_up = torch.tensor([[-1000.0, -90.0, 1.0, 1.0]])
    assert not silu_mul_reference(gate_up).isnan().any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_kv_write(load_kernel: Load, dtype: torch.dtype) -> None:
    packed = torch.randn(5, 7, 10).to(dtype)  # as it comes out of a fused projection
    key, value = packed[:, 2:5], packed[:, 4:7]
    slots = torch.tensor([17, 3, 40])  # two tokens of padding
    mine = torch.full((3, 2, 3, 16, 10), float("nan"), dtype=dtype)
    expected = mine.clone()
    kv_write_reference(key, value, expected, slots)
    load_kernel("kv_write")(key, value, mine, slots)
    assert torch.equal(mine.nan_to_num(99.0), expected.nan_to_num(99.0))
    assert torch.equal(expected[1, 0, :, 1], key[0])
    assert torch.equal(expected[2, 1, :, 8], value[2])
    assert expected.isfinite().all(dim=-1).sum() == 3 * 2 * 3


def test_cpu_operations_give_a_row_the_same_bits_in_any_company() -> None:
    x, weight = torch.randn(300, 74), torch.randn(37)
    for count in (1, 2, 7, 16, 299):
        assert torch.equal(silu_mul_reference(x[:count]), silu_mul_reference(x)[:count])
        mine = rms_norm_reference(x[:count, :37], weight, 1e-5)
        assert torch.equal(mine, rms_norm_reference(x[:, :37], weight, 1e-5)[:count])
