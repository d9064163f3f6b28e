from typing import Any

import numpy as np
import pytest
import torch
from _pytest.mark import ParameterSet

from millrace_kernels.device_kernels import Bounds, QueryRows, select_triton
from millrace_kernels.paged_attention import split_kv, triton_kernel
from millrace_kernels.paged_attention.cache import KvCache
from millrace_kernels.paged_attention.reference import paged_attention_reference
from millrace_kernels.paged_attention.split_kv import MOST_SPANS, bound_spans, count_span_keys, count_spans
from millrace_kernels.paged_attention.tiled import TiledAttention
from tests.kernels.libraries import READS_KERNELS

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


def on_gpu(batch: Any, query: torch.Tensor | None = None) -> torch.Tensor:
    """The Triton kernels' result, with the block tables in another order than the rows."""
    _, cache, starts, contexts, tables = batch.tensors()
    slots = torch.randperm(len(batch.contexts) + 2)[: len(batch.contexts)]
    shuffled = torch.full((len(slots) + 2, tables.shape[1]), -1, dtype=torch.int64)
    shuffled[slots] = tables.long()
    rows = QueryRows(batch.starts, batch.contexts, starts.long(), contexts.long(), slots)
    attend = select_triton().plan_attention(rows, shuffled, cache.num_kv_heads, 16)
    return attend(batch.query if query is None else query, cache, batch.scale)


def with_type(
    shapes: list[ParameterSet], dtype: torch.dtype, *marks: pytest.MarkDecorator
) -> list[ParameterSet]:
    """Return the shapes in a type of numbers."""
    return [
        pytest.param(*shape.values, dtype, id=f"{shape.id}, {str(dtype).removeprefix('torch.')}", marks=marks)
        for shape in shapes
    ]


LONG = [
    pytest.param([1, 1, 1, 1], [256, 257, 700, 4352], 4, 2, 8, id="decode of several spans"),
    pytest.param([1, 70, 1], [90, 130, 17], 2, 1, 256, id="heads so wide that tiles are smaller"),
    pytest.param([200, 1, 70], [450, 300, 70], 8, 2, 16, id="tiles of prefill, and decode"),
    pytest.param([1, 40], [513, 40], 7, 1, 24, id="seven heads a group"),
]


@pytest.mark.parametrize(
    ("queries", "contexts", "heads", "kv_heads", "head_dim", "dtype"),
    [
        *with_type(SHAPES + LONG, torch.float32),
        *with_type(SHAPES, torch.bfloat16),
        *with_type(LONG, torch.bfloat16, READS_KERNELS),
    ],
)
def test_triton_agrees_with_the_reference(  # noqa: PLR0917
    paged: Any,
    queries: list[int],
    contexts: list[int],
    heads: int,
    kv_heads: int,
    head_dim: int,
    dtype: torch.dtype,
) -> None:
    batch = paged(queries, contexts, heads, kv_heads, head_dim, dtype)
    expected = paged_attention_reference(*batch.tensors(), batch.scale)
    bound = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(on_gpu(batch), expected, atol=bound, rtol=bound)


def test_triton_attends_in_layers_of_different_heads_by_one_plan(paged: Any) -> None:
    """As a graph's plan, whose outputs' padding is cleared once for all layers of a shape."""
    queries, contexts = [1, 9, 1], [300, 30, 16]
    shapes = [(4, 2, 8), (6, 1, 24), (2, 2, 8), (4, 2, 8)]
    layers = [paged(queries, contexts, *shape, seed=number) for number, shape in enumerate(shapes)]
    _, _, starts, lengths, tables = layers[0].tensors()
    rows = QueryRows((), (), starts, lengths, torch.arange(3), Bounds(13, 9, has_prefill=True))
    attend = select_triton().plan_attention(rows, tables, 2, 16)
    for layer in layers:
        cache = torch.full_like(layer.cache, float("nan"))
        for to, origin, context in zip(tables, layer.tables, contexts, strict=True):
            count = -(-context // 16)
            cache[to[:count]] = layer.cache[origin[:count]]
        query = torch.full((13, *layer.query.shape[1:]), float("nan"))
        query[:11] = layer.query
        found = attend(query, KvCache(cache), layer.scale)
        expected = paged_attention_reference(*layer.tensors(), layer.scale)
        torch.testing.assert_close(found[:11], expected, atol=1e-5, rtol=1e-5)
        assert not found[11:].any()


@pytest.mark.parametrize("queries", [1, 2])
def test_triton_rounds_weights_to_the_values_type_before_it_mixes(paged: Any, queries: int) -> None:
    """Two weights times their values all but cancel, so the rest shows how the weights were rounded."""
    batch = paged([queries], [2 + queries], 1, 1, 16, torch.bfloat16)
    scores, values = torch.tensor([0.0, -1.0, -1.0625]), torch.tensor([0.0, 1024.0, -1088.0])
    batch.query.zero_()[..., 0] = 1.0
    sequence = batch.cache[batch.tables[0, 0]]
    sequence[0, 0, :4] = 0.0
    sequence[0, 0, :3, 0] = (scores / batch.scale).bfloat16()
    sequence[1, 0, :3] = values.bfloat16()[:, None]
    weights = scores.exp()
    cut = (weights.view(torch.int32) & -65536).view(torch.float32)  # as Triton's interpreter rounds
    expected = [(one @ values / weights.sum()).item() for one in (weights.bfloat16().float(), cut, weights)]
    found = on_gpu(batch)[0].flatten().tolist()
    assert expected[2] not in [pytest.approx(one, rel=0.1) for one in expected[:2]]
    assert any(found == pytest.approx([one] * 16, rel=0.02) for one in expected[:2])


def test_triton_reads_strided_queries(paged: Any) -> None:
    batch = paged([2, 1], [20, 3])
    padded = torch.full((5, 6, 8), float("nan"))
    padded[:3, 1:5] = batch.query
    output = on_gpu(batch, padded[:, 1:5])
    expected = paged_attention_reference(*batch.tensors(), batch.scale)
    torch.testing.assert_close(output[:3], expected, atol=1e-5, rtol=1e-5)


def test_triton_gives_a_decode_the_same_bits_alone_and_in_any_crowd(paged: Any) -> None:
    contexts = [530, 1, 256, 257, 40]
    crowd = paged([1, 1, 1, 1, 6], contexts, 6, 2, 24)
    expected = on_gpu(crowd)
    for row in range(4):
        mine = select_triton().plan_attention(
            QueryRows([0, 1], contexts[row : row + 1], torch.tensor([0, 1]), torch.tensor([contexts[row]]),
                      torch.tensor([row])),
            crowd.tables, 2, 16,
        )(crowd.query[row : row + 1], crowd.kv, crowd.scale)  # fmt: skip
        assert torch.equal(mine[0], expected[row])


@pytest.mark.usefixtures("exact_matmul")
@pytest.mark.parametrize("chunk", [2, 3, 100])
def test_triton_gives_a_prompt_the_same_bits_in_any_chunks(paged: Any, chunk: int) -> None:
    length = 200
    whole = paged([length], [length], 4, 2, 16)
    expected = on_gpu(whole)
    for begin in (0, 50, 100, length - chunk):
        end = begin + chunk
        rows = QueryRows([0, chunk], [end], torch.tensor([0, chunk]), torch.tensor([end]), torch.tensor([0]))
        attend = select_triton().plan_attention(rows, whole.tables, 2, 16)
        assert torch.equal(attend(whole.query[begin:end], whole.kv, whole.scale), expected[begin:end])


def test_a_row_without_keys_pads_and_its_neighbours_have_the_same_bits(paged: Any) -> None:
    """So has a graph's batch, whose memory is for more spans than there are."""
    batch = paged([1, 1], [300, 20])
    alone, (_, cache, _, _, tables) = on_gpu(batch), batch.tensors()
    starts, contexts = torch.arange(5), torch.tensor([300, 20, 0, 0])
    bounds = Bounds(4, 9, has_prefill=False)
    rows = QueryRows((), (), starts, contexts, torch.tensor([0, 1, 0, 0]), bounds)
    query = torch.cat((batch.query, torch.full_like(batch.query, float("nan"))))
    padded = select_triton().plan_attention(rows, tables, 2, 16)(query, cache, batch.scale)
    assert torch.equal(padded[:2], alone)
    assert not padded[2:].any()


@pytest.mark.parametrize(("num_tokens", "num_rows"), [(85, 4), (96, 8), (300, 40)])
def test_a_mixed_steps_rows_have_the_same_bits_in_any_larger_graph(
    paged: Any, num_tokens: int, num_rows: int
) -> None:
    """Rows without queries pad, and tokens of no row. The largest row has several tiles."""
    queries, contexts = [1, 70, 1, 13], [600, 130, 17, 13]
    batch = paged(queries, contexts, 4, 2, 16)
    alone, (_, cache, _, _, tables) = on_gpu(batch), batch.tensors()
    missing = num_rows - len(queries)
    starts = torch.tensor(batch.starts + [85] * missing)
    rows = QueryRows(
        (), (), starts, torch.tensor(contexts + [0] * missing), torch.arange(num_rows) % len(queries),
        Bounds(num_tokens, bound_spans(num_rows, 900), has_prefill=True),
    )  # fmt: skip
    query = torch.full((num_tokens, 4, 16), float("nan"))
    query[:85] = batch.query
    padded = select_triton().plan_attention(rows, tables, 2, 16)(query, cache, batch.scale)
    assert torch.equal(padded[:85], alone)
    assert not padded[85:].any()


def test_spans_are_counted_and_bounded() -> None:
    assert count_spans([0, 1, 2, 12, 13], [1, 256, 900, 257]) == 1 + 1 + 2
    for contexts in ([1], [256], [257] * 7, [1000, 1, 8], [512, 511, 513], [8192, 8193], [131072, 1, 40000]):
        count = count_spans(range(len(contexts) + 1), contexts)
        assert count <= bound_spans(len(contexts), sum(contexts))


def test_a_long_sequence_has_longer_spans_and_not_more_of_them() -> None:
    lengths = np.arange(1, 40000)
    keys = count_span_keys(lengths)
    assert not (keys % 64).any()
    assert keys[:8192].max() == 256 < keys[8192] == 320
    counts = -(-lengths // keys)
    assert counts.max() == MOST_SPANS
    assert counts[8191:].min() > MOST_SPANS * 3 // 4, "and all of the device has work"
    assert torch.equal(count_span_keys(torch.from_numpy(lengths)), torch.from_numpy(keys)), "so has a graph"


@pytest.mark.parametrize("context", [127, 128, 129, 257, 300])
def test_decode_agrees_where_spans_grow(paged: Any, context: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (split_kv, triton_kernel):
        monkeypatch.setattr(module, "LEAST_KEYS", 64)
        monkeypatch.setattr(module, "MOST_SPANS", 2)
    batch = paged([1, 1], [context, 20])
    expected = paged_attention_reference(*batch.tensors(), batch.scale)
    torch.testing.assert_close(on_gpu(batch), expected, atol=1e-5, rtol=1e-5)


def tiled(batch: Any) -> torch.Tensor:
    plan = TiledAttention(batch.starts, batch.contexts, batch.tables, batch.cache.shape[2], 16)
    output: torch.Tensor = plan(batch.query, batch.kv, batch.scale)
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
            mine = plan(whole.query[begin:end], whole.kv, whole.scale)
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
        mine = plan(crowd.query[row : row + 1], crowd.kv, crowd.scale)
        assert torch.equal(mine[0], expected[row])


def test_a_block_size_that_does_not_divide_the_tile_is_refused(paged: Any) -> None:
    batch = paged([1], [1])
    with pytest.raises(ValueError, match="does not divide the tile"):
        TiledAttention([0, 1], [1], batch.tables, 2, 24)
