"""A query with a window sees its own key and those shortly before it, and reads no block of others."""

from typing import Any

import numpy as np
import pytest
import torch

from millrace_kernels.device_kernels import Bounds, Kernels, QueryRows, select_kernels, select_triton
from millrace_kernels.native.abi import Library
from millrace_kernels.native.selfcheck import Case, run_native
from millrace_kernels.paged_attention.reference import paged_attention_reference
from millrace_kernels.paged_attention.split_kv import bound_spans, count_spans
from millrace_kernels.step import Heads
from tests.kernels.libraries import READS_KERNELS

CPU = torch.device("cpu")
WINDOWS = {"torch": (1, 5, 255, 256, 257, 1000), "triton": (1, 5, 63, 64, 65, 1000)}
"""Smaller than a block; the keys of the kernel's tile, one fewer and one more; longer than each sequence."""
QUERIES, CONTEXTS = [1, 1, 1, 40, 1, 130, 2], [5, 64, 600, 40, 257, 300, 300]


def select(name: str) -> Kernels:
    return select_kernels(CPU) if name == "torch" else select_triton()


def attend(kernels: Kernels, batch: Any, window: int | None) -> torch.Tensor:
    starts, contexts = torch.tensor(batch.starts), torch.tensor(batch.contexts)
    rows = QueryRows(batch.starts, batch.contexts, starts, contexts, torch.arange(len(batch.contexts)))
    planned = kernels.plan_attention(rows, batch.tables, batch.cache.shape[2], 16, window)
    return planned(batch.query, batch.kv, batch.scale)


def part(batch: Any, row: int, begin: int, end: int) -> Any:
    """The batch of one row alone, with some of its queries."""
    alone = object.__new__(type(batch))
    vars(alone).update(vars(batch))
    first, stop = batch.starts[row : row + 2]
    alone.query, alone.tables = batch.query[first + begin : first + end], batch.tables[row : row + 1]
    alone.starts, alone.contexts = [0, end - begin], [batch.contexts[row] - (stop - first) + end]
    return alone


@pytest.mark.parametrize("window", [1, 5, 16, 20, 100])
def test_the_reference_is_softmax_attention_over_the_window(paged: Any, window: int) -> None:
    batch = paged([1, 7, 3], [33, 40, 3])
    whole = batch.cache[batch.tables.long()].double()
    batch.forget(window)
    output = paged_attention_reference(*batch.tensors(), batch.scale, window)
    for row, (start, stop) in enumerate(zip(batch.starts, batch.starts[1:], strict=False)):
        keys, values = whole[row].permute(1, 2, 0, 3, 4).flatten(2, 3).repeat_interleave(2, dim=1)
        for token in range(start, stop):
            end = batch.contexts[row] - (stop - token) + 1
            seen = slice(max(0, end - window), end)
            scores = torch.einsum("hd,hkd->hk", batch.query[token].double(), keys[:, seen]) * batch.scale
            expected = torch.einsum("hk,hkd->hd", scores.softmax(-1), values[:, seen])
            torch.testing.assert_close(output[token].double(), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "dtype", "windows"),
    [
        (4, 2, 8, torch.float32, ()),
        (6, 1, 20, torch.float32, (5, 100)),
        (3, 3, 6, torch.bfloat16, (16, 70)),
        pytest.param(2, 1, 256, torch.bfloat16, (15, 100), marks=READS_KERNELS),
    ],
)
def test_windows_agree_with_the_reference(  # noqa: PLR0917
    paged: Any,
    name: str,
    heads: int,
    kv_heads: int,
    head_dim: int,
    dtype: torch.dtype,
    windows: tuple[int, ...],
) -> None:
    bound = 1e-5 if dtype == torch.float32 else 2e-2
    for window in windows or WINDOWS[name]:
        batch = paged(QUERIES, CONTEXTS, heads, kv_heads, head_dim, dtype)
        batch.forget(window)
        expected = paged_attention_reference(*batch.tensors(), batch.scale, window)
        found = attend(select(name), batch, window)
        torch.testing.assert_close(found, expected, atol=bound, rtol=bound, msg=f"window {window}")


@pytest.mark.usefixtures("exact_matmul")
@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.parametrize("window", [5, 100, 257])
def test_a_querys_bits_depend_on_its_sequence_alone(paged: Any, name: str, window: int) -> None:
    batch, kernels = paged([1, 1, 340, 1], [700, 9, 350, 330], 6, 2, 8), select(name)
    expected = attend(kernels, batch, window)
    alone_in_step, chunks = [(0, 0, 1), (1, 0, 1), (3, 0, 1)], [(0, 3), (62, 65), (13, 113), (240, 340)]
    for row, begin, end in [*alone_in_step, *((2, *chunk) for chunk in chunks)]:
        alone = part(batch, row, begin, end)
        mine, first = attend(kernels, alone, window), batch.starts[row]
        assert torch.equal(mine, expected[first + begin : first + end]), (row, begin, end)


def test_a_torch_decodes_bits_are_those_of_its_prompt(paged: Any) -> None:
    batch = paged([300], [300])
    expected = attend(select_kernels(CPU), batch, 70)
    for at in (0, 69, 70, 255, 256, 257, 299):
        alone = part(batch, 0, at, at + 1)
        assert torch.equal(attend(select_kernels(CPU), alone, 70)[0], expected[at]), at


@pytest.mark.parametrize(
    ("queries", "padding", "num_tokens"), [([1, 1, 1], [4, 5], 5), ([1, 1, 70], [72, 72], 80)]
)
def test_a_graph_repeats_windows_at_any_lengths(
    paged: Any, queries: list[int], padding: list[int], num_tokens: int
) -> None:
    contexts = [900, 20, 130]
    batch = paged(queries, contexts)
    alone = attend(select_triton(), batch, 300)
    bounds = Bounds(num_tokens, bound_spans(5, 2000, 300), has_prefill=num_tokens > 5)
    starts, lengths = torch.tensor([*batch.starts, *padding]), torch.tensor([*contexts, 0, 0])
    rows = QueryRows((), (), starts, lengths, torch.tensor([0, 1, 2, 0, 0]), bounds)
    query = torch.full((num_tokens, 4, 8), float("nan"))
    query[: len(batch.query)] = batch.query
    padded = select_triton().plan_attention(rows, batch.tables, 2, 16, 300)(query, batch.kv, batch.scale)
    assert torch.equal(padded[: len(batch.query)], alone)
    assert not padded[len(batch.query) :].any()


def test_spans_cover_no_more_than_the_window() -> None:
    assert count_spans([0, 1, 2, 12, 13], [100, 9000, 900, 257], 1024) == 1 + 4 + 2
    assert [bound_spans(3, 10000, window) for window in (1, 256, 257, 4096, None)] == [3, 3, 6, 42, 42]
    lengths = np.arange(1, 20000, 37)
    for window in (1, 255, 256, 257, 8192, 8193, 10000):
        counts = [count_spans([0, 1], [length], window) for length in lengths.tolist()]
        assert max(counts) <= bound_spans(1, 20000, window)


@pytest.mark.parametrize(
    ("dtype", "num_threads"),
    [(torch.float32, 3), (torch.bfloat16, 2), pytest.param(torch.bfloat16, 3, marks=READS_KERNELS)],
)
@pytest.mark.parametrize("window", [3, 64, 530])
def test_a_native_rows_bits_depend_on_nothing_but_the_row(
    library: Library, dtype: torch.dtype, num_threads: int, window: int
) -> None:
    """Blocks that the window has passed are NaN in the next step."""
    lengths, heads = (1200, 1100, 40), Heads(3, 1, 20)

    def run(*steps: tuple[int, ...], threads: int = num_threads) -> torch.Tensor:
        return run_native(
            Case(lengths=lengths, heads=heads, steps=steps, window=window), library, dtype, threads
        )

    expected = run(lengths, threads=1)
    assert expected.isfinite().all()
    assert torch.equal(run((1199, 1000, 40), (1, 100, 0))[:2], expected[:2])
    assert torch.equal(run((500, 577, 1), (699, 522, 36), (1, 1, 3)), expected)
