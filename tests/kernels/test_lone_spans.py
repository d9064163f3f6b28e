"""A row with a lone span: the decode kernel writes the very bits that a merge would."""

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from millrace_kernels.device_kernels import Bounds, QueryRows, select_triton
from millrace_kernels.paged_attention import triton_kernel
from millrace_kernels.paged_attention.cache import KvCache, KvFormat, round_heads
from millrace_kernels.paged_attention.split_kv import count_row_spans

QUERIES, CONTEXTS = [1, 1, 3, 1, 1, 1], [1, 700, 40, 256, 257, 90]
LONE, SEVERAL = [0, 5, 7], [1, 6]
"""Tokens whose row has a lone span, without a window; and several. Those from 2 to 4 are a chunk's."""
PADDING = [8, 9]
"""The token of a padding row with a query and no keys, as in decode graphs; and a token of no row."""


class Layer(NamedTuple):
    heads: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype
    window: int | None = None
    form: KvFormat = KvFormat.MODEL
    has_sinks: bool = False


class Step(NamedTuple):
    batch: Any
    layer: Layer
    sinks: Tensor | None

    def attend(self) -> Tensor:
        """Return the output of a graph that the step does not fill."""
        batch, layer = self.batch, self.layer
        is_rounded = layer.form is not KvFormat.MODEL
        cache = KvCache(*round_heads(batch.cache, layer.form), layer.form) if is_rounded else batch.kv
        starts, contexts = torch.tensor([*batch.starts, 9, 9]), torch.tensor([*CONTEXTS, 0, 0])
        bounds = Bounds(10, 20, has_prefill=True)
        rows = QueryRows((), (), starts, contexts, torch.tensor([*range(len(CONTEXTS)), 0, 0]), bounds)
        plan = select_triton().plan_attention(rows, batch.tables, layer.kv_heads, 16, layer.window)
        query = torch.cat((batch.query, torch.full_like(batch.query[:2], torch.nan)))
        return plan(query, cache, batch.scale, self.sinks).clone()


def make_step(paged: Any, layer: Layer) -> Step:
    batch = paged(QUERIES, CONTEXTS, *layer[:4])
    if layer.window is not None:
        batch.forget(layer.window)
    return Step(batch, layer, torch.randn(layer.heads) * 3 if layer.has_sinks else None)


def add_empty_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each row with keys one span more, which has none: so no row's span is a lone one."""

    def count(contexts: Tensor, window: int | None) -> Tensor:
        return count_row_spans(contexts, window) + (contexts > 0)

    monkeypatch.setattr(triton_kernel, "count_row_spans", count)


class NoMerge:
    """Takes the place of the merge kernel, and writes nothing."""

    def __getitem__(self, grid: object) -> Any:
        return lambda *_, **__: None


@pytest.mark.parametrize(
    "layer",
    [
        Layer(4, 2, 8, torch.float32),
        Layer(7, 1, 24, torch.bfloat16, window=300, has_sinks=True),
        Layer(6, 2, 20, torch.float32, window=70, form=KvFormat.INT8, has_sinks=True),
        Layer(3, 3, 6, torch.bfloat16, form=KvFormat.INT8),
        Layer(4, 1, 8, torch.bfloat16, window=300, form=KvFormat.FP8),
    ],
    ids=str,
)
def test_a_lone_span_has_the_bits_of_its_merge(
    paged: Any, layer: Layer, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = make_step(paged, layer)
    found = step.attend()
    assert found[: PADDING[0]].isfinite().all()
    assert not found[PADDING].any()
    add_empty_spans(monkeypatch)
    merged = step.attend()
    assert torch.equal(found.view(torch.uint8), merged.view(torch.uint8))


def test_only_rows_with_several_spans_wait_for_the_merge(paged: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A NaN in a key spoils the row that sees it, as it does through the merge."""
    step = make_step(paged, Layer(4, 2, 8, torch.float32, has_sinks=True))
    step.batch.cache[step.batch.tables[5, 0], 0, 0, 3] = torch.nan
    expected = step.attend()
    assert expected[7, :2].isnan().all()
    assert expected[7, 2:].isfinite().all(), "the other KV head"
    monkeypatch.setattr(triton_kernel, "_merge_kernel", NoMerge())
    found = step.attend()
    assert torch.equal(found[LONE].nan_to_num(9.0), expected[LONE].nan_to_num(9.0))
    assert not found[SEVERAL].any()
