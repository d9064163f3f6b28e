"""Sinks of attention: a score of each head that takes a part of its queries' weights, and adds no value."""

from typing import Any

import pytest
import torch
from torch import Tensor

from millrace_kernels.device_kernels import QueryRows, select_kernels, select_triton
from millrace_kernels.paged_attention.cache import KvCache, KvFormat, round_heads
from millrace_kernels.paged_attention.reference import paged_attention_reference

CPU = torch.device("cpu")
QUERIES, CONTEXTS = [1, 1, 40, 1, 130], [5, 600, 40, 257, 300]


def attend(name: str, batch: Any, cache: Any, sinks: Tensor | None, window: int | None = None) -> Tensor:
    kernels = select_kernels(CPU) if name == "torch" else select_triton()
    starts, contexts = torch.tensor(batch.starts), torch.tensor(batch.contexts)
    rows = QueryRows(batch.starts, batch.contexts, starts, contexts, torch.arange(len(batch.contexts)))
    planned = kernels.plan_attention(rows, batch.tables, cache.num_kv_heads, 16, window)
    output: Tensor = planned(batch.query, cache, batch.scale, sinks)
    return output


def test_the_reference_is_softmax_with_one_score_more(paged: Any) -> None:
    batch, sinks = paged([1, 7], [33, 40]), torch.tensor([-2.0, 0.5, 3.0, 40.0])
    output = paged_attention_reference(*batch.tensors(), batch.scale, sinks=sinks)
    whole = batch.cache[batch.tables.long()].double()
    for row, (start, stop) in enumerate(zip(batch.starts, batch.starts[1:], strict=False)):
        keys, values = whole[row].permute(1, 2, 0, 3, 4).flatten(2, 3).repeat_interleave(2, dim=1)
        for token in range(start, stop):
            end = batch.contexts[row] - (stop - token) + 1
            scores = torch.einsum("hd,hkd->hk", batch.query[token].double(), keys[:, :end]) * batch.scale
            total = scores.exp().sum(-1) + sinks.double().exp()
            expected = torch.einsum("hk,hkd->hd", scores.exp() / total[:, None], values[:, :end])
            torch.testing.assert_close(output[token].double(), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["torch", "triton"])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "dtype", "window"),
    [(4, 2, torch.float32, None), (6, 1, torch.float32, 20), (8, 8, torch.bfloat16, 300)],
)
def test_every_path_agrees_with_the_reference(  # noqa: PLR0917
    paged: Any, name: str, heads: int, kv_heads: int, dtype: torch.dtype, window: int | None
) -> None:
    batch, sinks = paged(QUERIES, CONTEXTS, heads, kv_heads, 8, dtype), torch.randn(heads) * 3
    sinks[0] = 300.0  # takes all weights, and overflows no sum into a NaN
    if window is not None:
        batch.forget(window)
    bound = 1e-5 if dtype == torch.float32 else 2e-2
    expected = paged_attention_reference(*batch.tensors(), batch.scale, window, sinks)
    torch.testing.assert_close(attend(name, batch, batch.kv, sinks, window), expected, atol=bound, rtol=bound)
    assert not torch.allclose(attend(name, batch, batch.kv, None, window), expected, atol=bound)
    sinks[0] = float("nan")
    spoiled = attend(name, batch, batch.kv, sinks, window)
    assert spoiled[:, 0].isnan().all()
    assert torch.equal(spoiled[:, 1:], attend(name, batch, batch.kv, sinks.nan_to_num(), window)[:, 1:])


@pytest.mark.parametrize("name", ["torch", "triton"])
def test_sinks_beside_a_rounded_cache(paged: Any, name: str) -> None:
    batch, sinks = paged(QUERIES, CONTEXTS), torch.randn(4)
    cache = KvCache(*round_heads(batch.cache, KvFormat.INT8), KvFormat.INT8)
    query, _, *tables = batch.tensors()
    expected = paged_attention_reference(query, cache, *tables, batch.scale, sinks=sinks)
    torch.testing.assert_close(attend(name, batch, cache, sinks), expected, atol=1e-4, rtol=1e-4)
