"""Runs a record: with a workspace, the library's structures, and one call for each step."""

import ctypes
import sys
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from millrace_kernels.exchange.memory import Exchange
from millrace_kernels.native import abi
from millrace_kernels.native.errors import NativeError
from millrace_kernels.native.input_checks import check_cache, check_tables, require_room
from millrace_kernels.native.recording.record import TYPES, Record, Recorded, Register
from millrace_kernels.native.workspace import LINE, Place, place_parts, place_registers
from millrace_kernels.paged_attention.cache import BLOCK_SIZE, KvCache
from millrace_kernels.step import Scoring

HALVES_BYTES = 32
"""Of a row in 16 bits, beside its bytes."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """The largest step, and the number of threads."""

    num_tokens: int
    num_rows: int
    num_threads: int


@dataclass(frozen=True, slots=True)
class Batch:
    """One step's rows, each int32 [rows]; see program.h.

    A row draws at most once, after its last token.
    """

    slot: NDArray[np.int32]
    begin: NDArray[np.int32]
    count: NDArray[np.int32]


class NativeProgram:
    """Runs a recorded forward and its logits. One caller at a time."""

    def __init__(
        self, library: abi.Library, record: Record, sizes: Sizes, exchange: Exchange | None = None
    ) -> None:
        """`exchange` is for one of several workers, whose steps have the same rows.

        Raises PoolError if no thread can be started. Call `set_caches` before the first step.
        """
        operations, logits = record.operations, record.logits
        head = operations[record.num_forward :]
        hidden = head[0].x
        assert hidden is not None, "the head selects rows of the hidden states, which stay for it"
        places, num_bytes = place_registers(operations, sizes.num_tokens, sizes.num_rows, (logits, hidden))
        self._library = library
        self._workspace = torch.zeros(num_bytes + 64, dtype=torch.uint8)
        self._exchange = exchange
        parts, part_bytes = place_parts(operations, sizes.num_tokens, sizes.num_rows)
        assert bool(parts) == (exchange is not None), "only a record of several workers has an exchange"
        assert len(parts) != 1, "the single exchanges of two steps would share a place"
        if exchange is not None:
            exchange.open(part_bytes)
        shifted, _ = place_parts(operations, sizes.num_tokens, sizes.num_rows, shift=1)
        self._record, self._sizes = record, sizes
        self._structures: list[object] = []
        self._spans = torch.zeros(_spans_bytes(record, sizes), dtype=torch.uint8)
        self._spans_done = torch.zeros(sizes.num_rows * _most_kv_heads(record), dtype=torch.int32)
        self._program = self._assemble(operations, record.num_forward, places | parts)
        # Two that run in turn, because the exchanges of one after the other need different places.
        self._head_programs = [self._assemble(head, 0, places | one) for one in (parts, shifted)]
        self._num_heads = 0
        """Heads that were run for the newest step."""
        self._logits = self._view(logits, places[logits], sizes.num_rows)
        self._pool = library.new_pool(sizes.num_threads, _scratch_bytes(record, sizes))
        weakref.finalize(self, library.free_pool, self._pool)
        self._num_positions = record.num_positions or sys.maxsize
        self._dtype, self._heads = record.dtype, record.heads_by_layer
        self._num_groups = record.num_groups
        self._caches: list[KvCache] = []

    def set_caches(self, kv_caches: Sequence[KvCache]) -> None:
        """Set the caches, one for each layer, in the layout of paged_attention/cache.h."""
        assert not kv_caches or len(kv_caches) == len(self._heads), "a cache for each layer, or none at all"
        assert len({one.format for one in kv_caches}) <= 1, "one format for all layers"
        for layer, cache in enumerate(kv_caches):
            check_cache(cache, self._heads[layer], self._dtype)
        self._caches = list(kv_caches)
        self._program.kv_caches = _list_addresses([one.data for one in kv_caches])
        scales = [one.scales for one in kv_caches if one.scales is not None]
        self._program.kv_scales = _list_addresses(scales) if scales else None

    def poison(self) -> None:
        """Fill a step's memory with NaN, so that a read of unwritten memory shows in the result."""
        self._workspace.fill_(255)
        self._spans.fill_(255)

    @property
    def pool(self) -> abi.Pool:
        """The program's threads, for other work while no step runs."""
        return self._pool

    @property
    def progress(self) -> int:
        """The number of completed operations. It grows during a step, and stays the same if one hangs."""
        return sum(int(program.progress) for program in (self._program, *self._head_programs))

    @property
    def most_rows(self) -> int:
        """The most rows of logits at once."""
        return self._sizes.num_rows

    def run(self, batch: Batch, emits: Sequence[int], tokens: Tensor, blocks: Sequence[Tensor]) -> Tensor:
        """Compute the rows' tokens. Return float32 logits [emits, vocabulary], valid until the next call.

        tokens int64 [slots, any] holds each slot's token ids; blocks, by KV group and with one stride, int64
        [slots, any] its block table; `emits` are the rows that need logits. Raises NativeError for a step
        that is too large. The caller ensures that the token ids are in the vocabulary, and the blocks from a
        group's window on in the caches.
        """
        self._check(batch, emits, tokens, blocks)
        step = self._describe(batch, emits, tokens, blocks)
        self._library.run(self._pool, self._program, step)
        self._num_heads = 1 if emits else 0
        return self._logits[: len(emits)]

    def run_head(self, places: NDArray[np.int32]) -> Tensor:
        """Compute logits of other tokens of the newest step, by their places among its tokens.

        Return float32 logits [places, vocabulary], valid until the next call. Raises NativeError for too many
        places. The caller ensures that the step has these tokens.
        """
        require_room("rows that draw", len(places), self._sizes.num_rows)
        step = abi.Step(num_emits=len(places), emits=places.ctypes.data)
        self._library.run(self._pool, self._head_programs[self._num_heads % 2], step)
        self._num_heads += 1
        return self._logits[: len(places)]

    def _check(self, batch: Batch, emits: Sequence[int], tokens: Tensor, blocks: Sequence[Tensor]) -> None:
        """Refuse a step that would access memory outside the program's or the step's tables."""
        if self._heads and not self._caches:
            raise NativeError("the program has no KV cache: set its caches before it runs")
        _check_rows(batch, emits)
        check_tables(tokens, blocks)
        require_room("KV groups", self._num_groups, len(blocks))
        sizes = self._sizes
        widths = [table.shape[1] * BLOCK_SIZE for table in blocks]
        positions = min(tokens.shape[1], self._num_positions, *widths)
        slots = min(tokens.shape[0], *(table.shape[0] for table in blocks))
        require_room("tokens", int(batch.count.sum()), sizes.num_tokens)
        require_room("rows", len(batch.slot), sizes.num_rows)
        require_room("rows that draw", len(emits), sizes.num_rows)
        require_room("positions", int((batch.begin + batch.count).max(initial=0)), positions)
        require_room("slots", int(batch.slot.max(initial=-1)) + 1, slots)

    def _describe(
        self, batch: Batch, emits: Sequence[int], tokens: Tensor, blocks: Sequence[Tensor]
    ) -> abi.Step:
        ends = np.cumsum(batch.count, dtype=np.int32)
        start = ends - batch.count
        row_of = np.repeat(np.arange(len(batch.count), dtype=np.int32), batch.count)
        position = np.arange(len(row_of), dtype=np.int32) - start[row_of] + batch.begin[row_of]
        drawn = (ends - 1)[list(emits)]
        arrays = (batch.slot, batch.begin, batch.count, start, row_of, position, drawn)
        # Copied into one array: reading the address of each array took longer than everything else.
        memory = np.concatenate(arrays)
        assert memory.dtype == np.int32, f"{memory.dtype} is not int32"
        places = accumulate((array.nbytes for array in arrays[:-1]), initial=memory.ctypes.data)
        tables = (ctypes.c_void_p * len(blocks))(*(table.data_ptr() for table in blocks))
        step = abi.Step(
            len(batch.slot), len(row_of), len(drawn), *places,
            tokens=tokens.data_ptr(), blocks=tables,
            tokens_stride=tokens.stride(0), blocks_stride=blocks[0].stride(0),
        )  # fmt: skip
        step.memory = memory  # ctypes holds addresses only: this keeps the array alive
        return step

    def _assemble(
        self, operations: Sequence[Recorded], num_forward: int, places: dict[Register, Place]
    ) -> abi.Program:
        ops = (abi.Op * len(operations))(*(self._op(one, places) for one in operations))
        workspace, kv_type = self._workspace.data_ptr(), TYPES[self._record.dtype]
        program = abi.Program(ops, len(ops), num_forward, workspace, kv_type=kv_type)
        program.spans, program.spans_bytes = self._spans.data_ptr(), self._spans.shape[0]
        program.spans_done = self._spans_done.data_ptr()
        if (shared := self._exchange) is not None:
            addresses = (shared.memory, shared.worker_bytes, shared.arrivals)
            program.exchange = ctypes.pointer(abi.Exchange(*addresses, shared.index, shared.count))
        return program

    def _op(self, operation: Recorded, places: dict[Register, Place]) -> abi.Op:
        y = self._rows(operation.y, places)
        y.offset += operation.column * operation.y.dtype.itemsize
        x = y if operation.x is None else self._rows(operation.x, places, is_read=True)
        op = abi.Op(operation.kind, x=x, y=y, number=operation.number, length=operation.length)
        if operation.shares is not None:
            bounds = (ctypes.c_int32 * len(operation.shares.bounds))(*operation.shares.bounds)
            self._structures.append(bounds)
            op.weight = ctypes.addressof(bounds)
        if (matrix := operation.matrix) is not None:
            bias = None if matrix.bias is None else matrix.bias.data_ptr()
            scales = None if matrix.scales is None else matrix.scales.data_ptr()
            shape = (
                matrix.layout,
                matrix.inputs,
                matrix.outputs,
                abi.GATES.get(operation.kind, 0),
                matrix.form.group or 0,
            )
            structure = abi.Matrix(matrix.data.data_ptr(), scales, bias, *shape)
            self._structures.append(structure)
            op.matrix = ctypes.pointer(structure)
        if operation.weight is not None:
            op.weight, op.weight_type = operation.weight.data_ptr(), TYPES[operation.weight.dtype]
        if operation.order is not None:
            op.weight = operation.order.data_ptr()
        if (heads := operation.heads) is not None:
            op.heads, op.kv_heads, op.head_dim = heads.num_heads, heads.num_kv_heads, heads.head_dim
        if (layer := operation.layer) is not None:
            op.layer, op.group, op.window = layer.number, layer.group, layer.window or 0
        if (norms := operation.norms) is not None:
            op.query_norm, op.key_norm = norms.query.data_ptr(), norms.key.data_ptr()
        op.parts, op.num_experts = operation.parts, operation.num_experts
        if operation.routes is not None:
            op.routes = self._rows(operation.routes, places)
        if (routing := operation.routing) is not None:
            op.is_softmax, op.is_normalised = routing.scoring is Scoring.SOFTMAX, routing.is_normalised
        return op

    def _rows(self, register: Register, places: dict[Register, Place], *, is_read: bool = False) -> abi.Rows:
        """Return the place of rows: in the workspace, or to be read in each worker's part of the exchange."""
        place, beyond = places[register], 0
        if register.exchange is not None:
            assert self._exchange is not None, (
                "only a record of several workers has registers in the exchange"
            )
            mine = self._exchange.memory + self._exchange.index * self._exchange.worker_bytes
            beyond = 0 if is_read else mine - self._workspace.data_ptr()
        return abi.Rows(place.offset + beyond, place.stride, register.width, TYPES[register.dtype])

    def _view(self, register: Register, place: Place, num_rows: int) -> Tensor:
        itemsize = register.dtype.itemsize
        shape, strides = (num_rows, register.width), (place.stride // itemsize, 1)
        return self._workspace.view(register.dtype).as_strided(shape, strides, place.offset // itemsize)


def _list_addresses(tensors: Sequence[Tensor]) -> ctypes.Array[ctypes.c_void_p]:
    return (ctypes.c_void_p * len(tensors))(*(one.data_ptr() for one in tensors))


def _check_rows(batch: Batch, emits: Sequence[int]) -> None:
    # The bitwise or of three numbers is negative if one of them is: one pass instead of three.
    assert (batch.slot | batch.begin | batch.count).min(initial=0) >= 0, "a slot, begin or count below zero"
    assert min(emits, default=0) >= 0, "a row that draws is one of the step"
    assert batch.count[list(emits)].all(), "a row that draws has a token"


def _most_kv_heads(record: Record) -> int:
    return max((heads.num_kv_heads for heads in record.heads_by_layer.values()), default=0)


def _spans_bytes(record: Record, sizes: Sizes) -> int:
    """Return the memory for sums of spans that threads share, in bytes: one longest sequence for each thread.

    More sequences occupy all threads anyway, so the spans of the others are not shared. Neither are those
    of a model without rotary tables, which has no longest sequence.
    """
    num_spans = -(-(record.num_positions or 0) // abi.SPAN_KEYS)
    needs = [0]
    for heads in record.heads_by_layer.values():
        num_rows, width = heads.num_heads // heads.num_kv_heads, _whole_vectors(heads.head_dim)
        span = num_rows * (2 + width) * 4 + 3 * LINE
        needs.append(span * heads.num_kv_heads * num_spans)
    return max(needs) * sizes.num_threads


def _scratch_bytes(record: Record, sizes: Sizes) -> int:
    """Return the scratch memory of each thread, in bytes: for a product's sums, or a task of attention."""
    needs = [sizes.num_tokens * abi.SUMS * 4 + abi.WIDE_BYTES]
    needs += [one.count_sorted_bytes(sizes.num_tokens) for one in record.operations]
    for heads in record.heads_by_layer.values():
        rows = max(abi.TASK_ROWS, heads.num_heads // heads.num_kv_heads)
        width = _whole_vectors(heads.head_dim)
        halves = 2 * (HALVES_BYTES + width + abi.TILE_KEYS)  # quads.h
        edges = 2 * BLOCK_SIZE * 2 * width  # tiled.h; a row's copy there takes no more than its halves
        needs.append(rows * (8 + 4 * 4 + 2 * 4 * width + 2 * 4 * abi.TILE_KEYS + halves) + edges + 20 * 64)
    return max(needs)


def _whole_vectors(width: int) -> int:
    return -(-width // abi.LANES) * abi.LANES
