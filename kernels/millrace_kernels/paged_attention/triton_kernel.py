"""Paged attention on GPUs: the decode kernel for rows of one query, the prefill kernel for the others."""

from typing import NamedTuple

import torch
import triton
from torch import Tensor

from millrace_kernels.paged_attention.cache import KvCache
from millrace_kernels.paged_attention.split_kv import KEYS_UNIT, LEAST_KEYS, MOST_SPANS, count_row_spans
from millrace_kernels.paged_attention.tiles import (
    WARPS_PER_PROCESSOR,
    Tile,
    choose_decode_tile,
    choose_prefill_tile,
)
from millrace_kernels.paged_attention.triton_decode import (
    MERGE_WARPS,
    SPANS_AT_ONCE,
    _decode_kernel,
    _merge_kernel,
)
from millrace_kernels.paged_attention.triton_prefill import _prefill_kernel
from millrace_kernels.paged_attention.triton_tile import LOG2_E


class StepRows(NamedTuple):
    """The queries and sequences of a step's rows, on the device."""

    starts: Tensor
    """int32 [rows + 1]: each row's first query in the step."""
    contexts: Tensor
    """int32 [rows]: the length of each row's sequence after the step; 0 for a padding row."""
    slots: Tensor
    """int [rows]: the row's line in the block tables."""
    tables: Tensor
    """int [lines, width]: each sequence's blocks."""


class Work(NamedTuple):
    """The spans of a step's rows with one query, or the tiles of its other rows."""

    ends: Tensor
    """int32 [rows]: the number of parts up to and including each row."""
    owners: Tensor
    """int32 [parts]: the row of each part; values behind the last part have no meaning."""

    @classmethod
    def list_parts(cls, counts: Tensor, most: int) -> "Work":
        """Return the list of each row's parts, at `most` so many. A graph repeats these launches."""
        ends = counts.cumsum(0, dtype=torch.int32)
        numbers = torch.arange(most, dtype=torch.int32, device=ends.device)
        return cls(ends, torch.searchsorted(ends, numbers, right=True, out_int32=True))


class CacheArguments(NamedTuple):
    """A layer's cache, as arguments of the kernels."""

    data: Tensor
    scales: Tensor
    """Any memory if the cache has none: the kernels read none of it."""
    strides: tuple[int, ...]
    """Of the data's first four dimensions, and the scales' first three."""


def launch_cache(kv_cache: KvCache) -> CacheArguments:
    """Return a cache's arguments for a launch."""
    data, scales = kv_cache.data, kv_cache.scales
    strides = (0, 0, 0) if scales is None else scales.stride()[:3]
    return CacheArguments(data, data if scales is None else scales, (*data.stride()[:4], *strides))


class Call(NamedTuple):
    """A layer's call. Scores are multiplied by `scale`, and are exponents of 2."""

    query: Tensor
    kv_cache: KvCache
    output: Tensor
    scale: float
    sinks: Tensor | None


class TritonAttention:
    """A step's planned attention, called once for each layer. It never waits for the device."""

    def __init__(
        self,
        rows: StepRows,
        num_tokens: int,
        num_spans: int,
        *,
        has_prefill: bool,
        has_padding: bool = False,
        window: int | None = None,
    ) -> None:
        """`num_tokens` and `num_spans` (`split_kv.py`) are the step's, or the most that a graph will have.

        With `has_padding` tokens of no row get zeros. With a window a query sees its own key and the
        `window` - 1 before it.
        """
        self._rows, self._num_tokens, self._num_spans = rows, num_tokens, num_spans
        self._has_prefill, self._has_padding = has_prefill, has_padding
        self._num_rows, self._window = rows.contexts.shape[0], window or 0
        self._spans = _list_spans(rows, num_spans, window) if num_spans else None
        # What layers share: by the tokens of a tile, by heads and head_dim, and by the query's shape.
        self._tiles: dict[int, Work] = {}
        self._partial: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
        self._outputs: dict[torch.Size, Tensor] = {}

    def __call__(self, query: Tensor, kv_cache: KvCache, scale: float, sinks: Tensor | None = None) -> Tensor:
        """Attend; shapes as in `paged_attention_reference`. Without `has_padding` each token needs a row.

        The last dimension of query and kv_cache's data must be contiguous. With `has_padding` the next call
        overwrites the output.
        """
        output = self._find_output(query)
        call = Call(query, kv_cache, output, scale * LOG2_E.value, sinks)
        if self._spans is not None:
            self._decode(call, self._spans)
        if self._has_prefill:
            self._prefill(call)
        return output

    def _decode(self, call: Call, work: Work) -> None:
        query, kv_cache, output, scale, sinks = call
        rows, (_, num_heads, head_dim) = self._rows, query.shape
        kv_heads, (data, scales, strides) = kv_cache.num_kv_heads, launch_cache(kv_cache)
        group = num_heads // kv_heads
        sums, mixed = self._find_partial(num_heads, head_dim, query.device)
        sink_scores = sums if sinks is None else sinks
        tile = choose_decode_tile(query.dtype, head_dim, group)
        _decode_kernel[(_count_programs(query.device, tile),)](
            query, data, scales, sink_scores, output, sums, mixed, rows.starts, rows.contexts, work.ends,
            work.owners, rows.slots, rows.tables, scale, self._num_rows, query.stride(0), query.stride(1),
            *strides, output.stride(0), output.stride(1), rows.tables.stride(0),
            KV_HEADS=kv_heads, GROUP=group, HEAD_DIM=head_dim, BLOCK_SIZE=kv_cache.block_size,
            WINDOW=self._window, LEAST_KEYS=LEAST_KEYS, MOST_SPANS=MOST_SPANS, KEYS_UNIT=KEYS_UNIT,
            BLOCK_M=tile.rows, BLOCK_N=tile.keys, BLOCK_D=tile.head_dim,
            DOT_IN_FLOAT32=_is_interpreted(), HAS_SCALES=kv_cache.scales is not None,
            HAS_SINKS=sinks is not None,
            num_warps=tile.warps, num_stages=tile.stages, enable_fp_fusion=False,
        )  # fmt: skip
        _merge_kernel[(self._num_rows, num_heads)](
            sums, mixed, sink_scores, output, rows.starts, work.ends, output.stride(0), output.stride(1),
            HEADS=num_heads, HEAD_DIM=head_dim, SPANS=SPANS_AT_ONCE, BLOCK_D=tile.head_dim,
            HAS_SINKS=sinks is not None, num_warps=MERGE_WARPS, enable_fp_fusion=False,
        )  # fmt: skip

    def _find_output(self, query: Tensor) -> Tensor:
        if not self._has_padding:
            return torch.empty(query.shape, dtype=query.dtype, device=query.device)
        if query.shape not in self._outputs:
            # Layers share it, so one launch clears the padding of all of them.
            self._outputs[query.shape] = torch.zeros(query.shape, dtype=query.dtype, device=query.device)
        return self._outputs[query.shape]

    def _find_partial(self, num_heads: int, head_dim: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return memory for each span's maximum, sum and mixed values."""
        shape = num_heads, head_dim
        if shape not in self._partial:
            sums = torch.empty((self._num_spans, num_heads, 2), device=device)
            self._partial[shape] = sums, torch.empty((self._num_spans, *shape), device=device)
        return self._partial[shape]

    def _find_tiles(self, block_q: int) -> Work:
        """Return the tiles of rows with several queries."""
        if block_q not in self._tiles:
            queries = self._rows.starts.diff()
            counts = (queries + block_q - 1) // block_q * (queries > 1)
            most = self._num_tokens // block_q + min(self._num_rows, self._num_tokens // 2)
            self._tiles[block_q] = Work.list_parts(counts, most)
        return self._tiles[block_q]

    def _prefill(self, call: Call) -> None:
        query, kv_cache, output, scale, sinks = call
        rows, (_, num_heads, head_dim) = self._rows, query.shape
        kv_heads, (data, scales, strides) = kv_cache.num_kv_heads, launch_cache(kv_cache)
        group = num_heads // kv_heads
        tile = choose_prefill_tile(query.dtype, head_dim, group)
        block_q = tile.rows // group
        work = self._find_tiles(block_q)
        _prefill_kernel[(work.owners.shape[0], kv_heads)](
            query, data, scales, data if sinks is None else sinks, output, rows.starts, rows.contexts,
            work.ends, work.owners, rows.slots, rows.tables, scale, self._num_rows, query.stride(0),
            query.stride(1), *strides, output.stride(0), output.stride(1), rows.tables.stride(0),
            WINDOW=self._window, GROUP=group, HEAD_DIM=head_dim, BLOCK_SIZE=kv_cache.block_size,
            BLOCK_Q=block_q, BLOCK_M=tile.rows, BLOCK_N=tile.keys, BLOCK_D=tile.head_dim,
            DOT_IN_FLOAT32=_is_interpreted(), HAS_SCALES=kv_cache.scales is not None,
            HAS_SINKS=sinks is not None,
            num_warps=tile.warps, num_stages=tile.stages, enable_fp_fusion=False,
        )  # fmt: skip


def _list_spans(rows: StepRows, num_spans: int, window: int | None) -> Work:
    return Work.list_parts(count_row_spans(rows.contexts, window) * (rows.starts.diff() == 1), num_spans)


def _count_programs(device: torch.device, tile: Tile) -> int:
    """Return the number of decode programs: the same for every batch, so that a graph can hold the launch."""
    if device.type != "cuda":
        return 3  # the interpreter runs them one after the other; more than one, to test the sharing
    each = WARPS_PER_PROCESSOR // tile.warps
    return each * torch.cuda.get_device_properties(device).multi_processor_count


def _is_interpreted() -> bool:
    """Whether Triton interprets: it keeps bfloat16 as raw bits then, and its dot would multiply these."""
    return bool(triton.knobs.runtime.interpret)
