from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from torch.nn.functional import rms_norm

from millrace_kernels.linear.gpu.product import linear_add
from millrace_kernels.linear.reference import linear_reference
from millrace_kernels.paged_attention.cache import KvCache
from millrace_kernels.rms_norm.reference import rms_norm_reference
from millrace_kernels.rotary_kv_write.reference import rotary_kv_write_reference
from millrace_kernels.silu_mul.reference import gelu_mul_reference, silu_mul_reference
from millrace_kernels.step import HeadNorms, Heads

Load = Callable[..., Any]
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


class Layer(NamedTuple):
    """A layer's heads, and what happens to its queries and keys."""

    heads: Heads
    is_normed: bool
    is_turned: bool


LAYERS = [
    Layer(Heads(4, 2, 12), is_normed=False, is_turned=True),
    Layer(Heads(3, 3, 6), is_normed=True, is_turned=True),
    Layer(Heads(9, 1, 10), is_normed=True, is_turned=False),
    Layer(Heads(2, 1, 20), is_normed=False, is_turned=False),
    Layer(Heads(5, 1, 80), is_normed=True, is_turned=True),
    Layer(Heads(12, 4, 96), is_normed=True, is_turned=False),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layer", LAYERS)
def test_rotary_kv_write(load_kernel: Load, layer: Layer, dtype: torch.dtype) -> None:
    """Of five tokens two pad: their keys and values go nowhere."""
    heads = layer.heads
    count, half = heads.num_heads + 2 * heads.num_kv_heads, heads.head_dim // 2
    poisoned = torch.full((5, count * heads.head_dim + 8), float("nan"), dtype=dtype)
    qkv = poisoned[:, 4 : 4 + count * heads.head_dim]
    qkv.copy_(torch.randn(5, count * heads.head_dim) * 3)
    turns, positions = torch.randn(21, half), torch.tensor([17, 3, 20, 0, 0])
    table, slots = torch.stack((turns.cos(), turns.sin())), torch.tensor([17, 3, 40, -1, -1])
    weights = torch.full((4, heads.head_dim), float("nan"), dtype=dtype)
    weights[1:3] = torch.rand(2, heads.head_dim) / 2
    norms = HeadNorms(weights[1], weights[2], 1e-2) if layer.is_normed else None
    caches = [torch.full((3, 2, heads.num_kv_heads, 16, heads.head_dim), 99.0, dtype=dtype) for _ in "12"]
    inputs = (heads, positions, table if layer.is_turned else None)
    expected = rotary_kv_write_reference(qkv.contiguous(), *inputs, KvCache(caches[0]), slots[:3], norms)
    close(load_kernel("rotary_kv_write")(qkv, *inputs, KvCache(caches[1]), slots, norms), expected)
    close(caches[1], caches[0])
    assert torch.equal(caches[1] == 99.0, caches[0] == 99.0)

    packed = qkv.float().view(5, count, heads.head_dim)
    values, width = heads.num_heads + heads.num_kv_heads, (heads.head_dim,)
    if layer.is_normed:
        query, key, value = packed.split((heads.num_heads, heads.num_kv_heads, heads.num_kv_heads), 1)
        scales = weights.float()
        query, key = rms_norm(query, width, scales[1], 1e-2), rms_norm(key, width, scales[2], 1e-2)
        packed = torch.cat((query, key, value), 1)
    plane = torch.complex(packed[..., :half], packed[..., half:])
    if layer.is_turned:
        plane *= torch.polar(torch.ones(5, 1, half), turns[positions][:, None])
    rotated = torch.cat((plane.real, plane.imag), -1).to(dtype)
    close(expected.view(5, heads.num_heads, -1), rotated[:, : heads.num_heads])
    close(caches[0][1, 0, :, 1], rotated[0, heads.num_heads : values])
    assert torch.equal(caches[0][2, 1, :, 8], packed[2, values:].to(dtype))
    assert (caches[0] != 99.0).all(dim=-1).sum() == 3 * 2 * heads.num_kv_heads


GATES: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], Callable[[torch.Tensor], torch.Tensor]]] = {
    "silu_mul": (silu_mul_reference, torch.nn.functional.silu),
    "gelu_mul": (gelu_mul_reference, partial(torch.nn.functional.gelu, approximate="tanh")),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", GATES)
@pytest.mark.parametrize(("rows", "width"), [(1, 1), (3, 37), (2, 1030)])
def test_a_gate_and_its_factor(
    load_kernel: Load, rows: int, width: int, name: str, dtype: torch.dtype
) -> None:
    reference, activate = GATES[name]
    gate_up = (torch.randn(rows, 2 * width) * 4).to(dtype)
    expected = reference(gate_up)
    close(load_kernel("silu_mul", name)(gate_up), expected)
    gate, up = gate_up.float().chunk(2, dim=-1)
    close(expected, (activate(gate) * up).to(dtype))


@pytest.mark.parametrize("name", GATES)
def test_very_negative_gates_are_zero_not_nan(name: str) -> None:
    gate_up = torch.tensor([[-1000.0, -90.0, 1e30, 1.0, 1.0, 1.0]])
    reference, _ = GATES[name]
    assert reference(gate_up).tolist()[0][:2] == [0.0, 0.0]
    assert not reference(gate_up).isnan().any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_product_on_gpus_is_added_in_place(dtype: torch.dtype) -> None:
    x, weight, bias = torch.randn(3, 40).to(dtype), torch.randn(24, 40).to(dtype), torch.randn(24).to(dtype)
    for given in (None, bias):
        residual = torch.randn(3, 24).to(dtype)
        expected = residual.float() + linear_reference(
            x.float(), weight.float(), given if given is None else given.float()
        )
        mine = linear_add(x, weight, given, residual)
        assert mine.data_ptr() == residual.data_ptr()
        bound = 1e-5 if dtype == torch.float32 else 6e-2  # 2^-8 of sums up to 16
        torch.testing.assert_close(mine.float(), expected, atol=bound, rtol=bound)


def test_cpu_operations_give_a_row_the_same_bits_in_any_company() -> None:
    x, weight = torch.randn(300, 74), torch.randn(37)
    for count in (1, 2, 7, 16, 299):
        assert torch.equal(silu_mul_reference(x[:count]), silu_mul_reference(x)[:count])
        assert torch.equal(gelu_mul_reference(x[:count]), gelu_mul_reference(x)[:count])
        mine = rms_norm_reference(x[:count, :37], weight, 1e-5)
        assert torch.equal(mine, rms_norm_reference(x[:, :37], weight, 1e-5)[:count])
        heads = x[:, :72].view(300, 9, 8)[:, 2:6]
        mine = rms_norm_reference(heads[:count], weight[:8], 1e-5)
        assert torch.equal(mine, rms_norm_reference(heads, weight[:8], 1e-5)[:count])
