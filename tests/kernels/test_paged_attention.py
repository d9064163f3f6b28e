from collections.abc import Callable
from typing import Any

import pytest
import torch

from millrace_kernels.paged_attention.reference import paged_attention_reference
from millrace_kernels.paged_attention.tiled import TiledAttention

SHAPES = [
    pytest.param([1, 1, 1], [1, 16, 35], 4, 2, 8, id="decode"),
    pytest.param([5, 17], [5, 17], 4, 2, 8, id="prefill"),
    pytest.param([1, 7, 1, 3], [33, 40, 2, 70], 6, 2, 8, id="mixed, odd group"),
    pytest.param([3, 1], [3, 20], 3, 3, 20, id="no groups, odd width"),
    pytest.param([2, 1], [19, 4], 8, 1, 16, id="one KV head"),
]


def dense(batch: Any, row: int) -> torch.Tensor:
    """Recompute a row from its sequence's keys laid out one after the other, query by query."""
    blocks, context = batch.tables[row].long(), batch.contexts[row]
    flat = batch.cache[blocks].permute(1, 2, 0, 3, 4).flatten(2, 3)[:, :, :context].double()
    begin, end = batch.starts[row], batch.starts[row + 1]
    group = batch.query.shape[1] // flat.shape[1]
    outputs = []
    for token in range(begin, end):
        seen = context - (end - token) + 1
        for head in range(batch.query.shape[1]):
            scores = flat[0, head // group, :seen] @ batch.query[token, head].double() * batch.scale
            outputs.append(scores.softmax(0) @ flat[1, head // group, :seen])
    return torch.stack(outputs).view(end - begin, batch.query.shape[1], -1)


@pytest.mark.parametrize(("queries", "contexts", "heads", "kv_heads", "head_dim"), SHAPES)
def test_the_reference_is_softmax_attention(  # noqa: PLR0917
    paged: Any, queries: list[int], contexts: list[int], heads: int, kv_heads: int, head_dim: int
) -> None:
    batch = paged(queries, contexts, heads, kv_heads, head_dim)
    output = paged_attention_reference(*batch.tensors(), batch.scale)
    for row in range(len(queries)):
        mine = output[batch.starts[row] : batch.starts[row + 1]]
        torch.testing.assert_close(mine.double(), dense(batch, row), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("queries", "contexts", "heads", "kv_heads", "head_dim"), SHAPES)
def test_triton_agrees_with_the_reference(  # noqa: PLR0917
    load_kernel: Callable[[str], Any],
    paged: Any,
    queries: list[int],
    contexts: list[int],
    heads: int,
    kv_heads: int,
    head_dim: int,
    dtype: torch.dtype,
) -> None:
    batch = paged(queries, contexts, heads, kv_heads, head_dim, dtype)
    kernel = load_kernel("paged_attention")
    expected = paged_attention_reference(*batch.tensors(), batch.scale)
    bound = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(kernel(*batch.tensors(), batch.scale), expected, atol=bound, rtol=bound)


def test_triton_rounds_weights_to_the_values_type_before_it_mixes(
    load_kernel: Callable[[str], Any], paged: Any
) -> None:
    """Two weights times their values all but cancel, so what is left tells how the weights were rounded."""
    batch = paged([1], [3], 1, 1, 16, torch.bfloat16)
    scores, values = torch.tensor([0.0, -1.0, -1.0625]), torch.tensor([0.0, 1024.0, -1088.0])
    batch.query.zero_()[..., 0] = 1.0
    sequence = batch.cache[batch.tables[0, 0]]
    sequence[0, 0, :3] = 0.0
    sequence[0, 0, :3, 0] = (scores / batch.scale).bfloat16()
    sequence[1, 0, :3] = values.bfloat16()[:, None]
    weights = scores.exp()
    cut = (weights.view(torch.int32) & -65536).view(torch.float32)  # as Triton's interpreter rounds
    expected = [(one @ values / weights.sum()).item() for one in (weights.bfloat16().float(), cut, weights)]
    found = load_kernel("paged_attention")(*batch.tensors(), batch.scale).flatten().tolist()
    assert expected[2] not in [pytest.approx(one, rel=0.1) for one in expected[:2]]
    assert any(found == pytest.approx([one] * 16, rel=0.02) for one in expected[:2])


def test_triton_reads_strided_queries_and_leaves_tokens_of_no_row_zero(
    load_kernel: Callable[[str], Any], paged: Any
) -> None:
    batch = paged([2, 1], [20, 3])
    padded = torch.full((5, 6, 8), float("nan"))
    padded[:3, 1:5] = batch.query
    query = padded[:, 1:5]
    output = load_kernel("paged_attention")(query, *batch.tensors()[1:], batch.scale)
    expected = paged_attention_reference(*batch.tensors(), batch.scale)
    torch.testing.assert_close(output[:3], expected, atol=1e-5, rtol=1e-5)
    assert not output[3:].any()


def tiled(batch: Any) -> torch.Tensor:
    plan = TiledAttention(batch.starts, batch.contexts, batch.tables, batch.cache.shape[2], 16)
    output: torch.Tensor = plan(batch.query, batch.cache, batch.scale)
    return output


@pytest.mark.parametrize(
    ("queries", "contexts"),
    [
        ([1, 1, 1], [1, 256, 257]),
        ([1] * 40, [7 * i + 1 for i in range(40)]),
        ([130, 1, 2, 300], [530, 513, 2, 300]),
    ],
)
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 2), (3, 3), (6, 1)])
def test_tiles_agree_with_the_reference(
    paged: Any, queries: list[int], contexts: list[int], heads: int, kv_heads: int
) -> None:
    batch = paged(queries, contexts, heads, kv_heads)
    expected = paged_attention_reference(*batch.tensors(), batch.scale)
    torch.testing.assert_close(tiled(batch), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(4, 2, 64), (3, 3, 6), (3, 3, 10)])
def test_tiles_give_the_same_bits_alone_crowded_and_in_any_chunks(
    paged: Any, heads: int, kv_heads: int, head_dim: int
) -> None:
    length = 530
    whole = paged([length, 1, 40, 1], [length, 300, 600, 9], heads, kv_heads, head_dim)
    expected = tiled(whole)[:length]
    for chunk in (1, 3, 16, 127, 256):
        begins = range(0, length, chunk) if chunk > 1 else (0, 1, 19, 255, 256, 257, length - 1)
        for begin in begins:
            end = min(begin + chunk, length)
            plan = TiledAttention([0, end - begin], [end], whole.tables[:1], kv_heads, 16)
            mine = plan(whole.query[begin:end], whole.cache, whole.scale)
            assert torch.equal(mine, expected[begin:end]), (chunk, begin)


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(4, 2, 64), (3, 3, 6), (3, 3, 10)])
def test_tiles_give_a_decode_the_same_bits_in_any_crowd(
    paged: Any, heads: int, kv_heads: int, head_dim: int
) -> None:
    crowd = paged([1] * 21, [400 - 19 * i for i in range(21)], heads, kv_heads, head_dim)
    expected = tiled(crowd)
    for row in range(21):
        plan = TiledAttention(
            [0, 1], crowd.contexts[row : row + 1], crowd.tables[row : row + 1], kv_heads, 16
        )
        mine = plan(crowd.query[row : row + 1], crowd.cache, crowd.scale)
        assert torch.equal(mine[0], expected[row])


def test_a_block_size_that_does_not_divide_the_tile_is_refused(paged: Any) -> None:
    batch = paged([1], [1])
    with pytest.raises(ValueError, match="does not divide the tile"):
        TiledAttention([0, 1], [1], batch.tables, 2, 24)
