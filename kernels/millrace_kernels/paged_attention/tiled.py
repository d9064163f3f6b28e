"""Paged attention on CPUs: float32 tiles of 256 keys anchored at position 0.

A sequence's bits depend only on the sequence: see README.md. The index and mask tensors of a step are planned
once, for all layers.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from millrace_kernels.linear.reference import MIN_GEMM_ROWS

TILE_KEYS = 256
HEAD_DIM_UNIT = 4
"""Heads of 6 or 10 dimensions are padded with zeros: otherwise their bits depend on the number of rows."""
QUERIES_AT_ONCE = 128
"""A longer chunk of prefill is split: scores then stay in the cache, and causality skips whole tiles."""
SEQUENCE_HEADS_AT_ONCE = 32
"""Decoding sequences times KV heads in one batch: with 64 dimensions their tiles take 4 MB."""


@dataclass(frozen=True, slots=True)
class Piece:
    """`num_tokens` queries of one row: they begin at `start` in the step and end at `end` in the sequence."""

    row: int
    start: int
    num_tokens: int
    end: int


@dataclass(frozen=True, slots=True)
class Tile:
    """256 keys of each of the first `num_sequences` sequences of a group."""

    num_sequences: int
    gather: Tensor
    """Rows of the cache seen as [blocks * 2 * kv_heads, block_size * head_dim]: keys, then values."""
    is_future: Tensor | None
    """[1, 1, tokens, 1, 256] for a chunk of prefill: keys after the query. None if every key is visible."""
    written: list[tuple[int, int]]
    """(sequence, keys) if a sequence ends inside the tile: memory beyond its end may hold anything.

    Slices, because filling a few is 7 times as fast as a broadcast mask over 8 decodes (tried).
    """


@dataclass(frozen=True, slots=True)
class Group:
    """Pieces of equal length, computed as one batch, the longest context first."""

    tokens: Tensor
    """[sequences * tokens]: the pieces' tokens in the step."""
    num_sequences: int
    tiles: list[Tile]


class TiledAttention:
    """A step's planned attention, called once for each layer."""

    def __init__(
        self,
        query_starts: Sequence[int],
        context_lengths: Sequence[int],
        block_tables: Tensor,
        num_kv_heads: int,
        block_size: int,
    ) -> None:
        if TILE_KEYS % block_size:
            raise ValueError(f"block size {block_size} does not divide the tile of {TILE_KEYS} keys")
        self._kv_heads = num_kv_heads
        self._tables = _widen(block_tables, TILE_KEYS // block_size)
        self._blocks_per_tile = TILE_KEYS // block_size
        pieces = list(_cut(query_starts, context_lengths))
        self._groups = [self._plan_group(group) for group in _group(pieces, num_kv_heads)]

    def __call__(self, query: Tensor, kv_cache: Tensor, scale: float) -> Tensor:
        """Attend; shapes as in `paged_attention_reference`. Tokens of no row get zeros."""
        output = torch.zeros_like(query)
        for group in self._groups:
            rows = _fill_up(query.index_select(0, group.tokens).float().mul_(scale))
            mixed = self._attend(group, rows, kv_cache)[..., : query.shape[-1]]
            output.index_copy_(0, group.tokens, mixed.to(query.dtype))
        return output

    def _plan_group(self, pieces: list[Piece]) -> Group:
        tokens = torch.tensor([p.start + i for p in pieces for i in range(p.num_tokens)])
        num_tiles = -(-pieces[0].end // TILE_KEYS)
        return Group(tokens, len(pieces), [self._plan_tile(pieces, tile) for tile in range(num_tiles)])

    def _plan_tile(self, pieces: list[Piece], tile: int) -> Tile:
        first_key = tile * TILE_KEYS
        pieces = [piece for piece in pieces if piece.end > first_key]
        sizes = [piece.end - first_key for piece in pieces]
        written = [(number, size) for number, size in enumerate(sizes) if size < TILE_KEYS]
        is_future = None
        num_tokens = pieces[0].num_tokens
        if num_tokens > 1 and sizes[0] - num_tokens + 1 < TILE_KEYS:
            seen = sizes[0] - num_tokens + torch.arange(1, num_tokens + 1)
            is_future = (torch.arange(TILE_KEYS) >= seen[:, None])[None, None, :, None, :]
        return Tile(len(pieces), self._gather_index(pieces, tile), is_future, written)

    def _gather_index(self, pieces: list[Piece], tile: int) -> Tensor:
        columns = slice(tile * self._blocks_per_tile, (tile + 1) * self._blocks_per_tile)
        blocks = self._tables[[piece.row for piece in pieces], columns]
        heads = torch.arange(self._kv_heads)[None, :, None]
        keys = blocks[:, None, :] * (2 * self._kv_heads) + heads
        return torch.stack((keys, keys + self._kv_heads)).flatten()

    def _attend(self, group: Group, query: Tensor, kv_cache: Tensor) -> Tensor:
        """Return [sequences * tokens, heads, head_dim] in float32."""
        folded, num_rows = _fold(query, group.num_sequences, self._kv_heads)
        best = total = mixed = torch.empty(0)
        for number, tile in enumerate(group.tiles):
            size = tile.num_sequences * self._kv_heads
            keys, values = self._load(tile, kv_cache)
            scores = torch.bmm(folded[:size], keys.transpose(1, 2))
            self._mask(scores, tile, num_rows)
            if number == 0:
                best = scores.amax(dim=-1, keepdim=True)
                weights = scores.sub_(best).exp_()
                total, mixed = weights.sum(dim=-1, keepdim=True), torch.bmm(weights, values)
                continue
            now = torch.maximum(best[:size], scores.amax(dim=-1, keepdim=True))
            shrink = (best[:size] - now).exp_()
            weights = scores.sub_(now).exp_()
            total[:size].mul_(shrink).add_(weights.sum(dim=-1, keepdim=True))
            mixed[:size].mul_(shrink).add_(torch.bmm(weights, values))
            best[:size] = now
        return _unfold(mixed.div_(total)[:, :num_rows], group.num_sequences, self._kv_heads, query.shape)

    def _load(self, tile: Tile, kv_cache: Tensor) -> tuple[Tensor, Tensor]:
        """Return the tile's keys and values, each float32 [sequences * kv_heads, 256, padded head_dim]."""
        head_dim = kv_cache.shape[-1]
        lines = kv_cache.view(-1, kv_cache.shape[3] * head_dim).index_select(0, tile.gather)
        pair = lines.float().view(2, tile.num_sequences, self._kv_heads, TILE_KEYS, head_dim)
        for number, size in tile.written:
            pair[1, number, :, size:].zero_()
        keys, values = _fill_up(pair).flatten(1, 2).unbind()
        return keys, values

    def _mask(self, scores: Tensor, tile: Tile, num_rows: int) -> None:
        """Mask future keys. Padding rows are not masked, because nothing reads them."""
        if tile.is_future is None:
            parts = scores.view(tile.num_sequences, self._kv_heads, -1, TILE_KEYS)
            for number, size in tile.written:
                parts[number, :, :, size:] = float("-inf")
            return
        num_tokens = tile.is_future.shape[2]
        shape = (tile.num_sequences, self._kv_heads, num_tokens, num_rows // num_tokens, TILE_KEYS)
        scores[:, :num_rows].view(shape).masked_fill_(tile.is_future, float("-inf"))


def _fill_up(heads: Tensor) -> Tensor:
    """Pad the last axis to a multiple of HEAD_DIM_UNIT."""
    missing = -heads.shape[-1] % HEAD_DIM_UNIT
    return torch.nn.functional.pad(heads, (0, missing)) if missing else heads


def _widen(block_tables: Tensor, multiple: int) -> Tensor:
    """Widen the tables to whole tiles. Entries without a block read block 0, which is masked."""
    missing = -block_tables.shape[1] % multiple
    return torch.nn.functional.pad(block_tables.long(), (0, missing)).clamp_(min=0)


def _cut(query_starts: Sequence[int], context_lengths: Sequence[int]) -> Iterator[Piece]:
    for row, context in enumerate(context_lengths):
        start, stop = query_starts[row], query_starts[row + 1]
        for begin in range(start, stop, QUERIES_AT_ONCE):
            end = min(begin + QUERIES_AT_ONCE, stop)
            yield Piece(row, begin, end - begin, context - (stop - end))


def _group(pieces: list[Piece], num_kv_heads: int) -> Iterator[list[Piece]]:
    """Batch the single queries, longest context first; a chunk of prefill is a group of its own."""
    singles = sorted((p for p in pieces if p.num_tokens == 1), key=lambda piece: -piece.end)
    size = max(1, SEQUENCE_HEADS_AT_ONCE // num_kv_heads)
    for begin in range(0, len(singles), size):
        yield singles[begin : begin + size]
    yield from ([piece] for piece in pieces if piece.num_tokens > 1)


def _fold(query: Tensor, num_sequences: int, kv_heads: int) -> tuple[Tensor, int]:
    """[sequences * tokens, heads, d] to [sequences * kv_heads, rows, d] with at least 16 rows.

    A group's heads and a piece's tokens are rows of one product. Returns it and the number of real rows.
    """
    total, heads, head_dim = query.shape
    tokens, group = total // num_sequences, heads // kv_heads
    num_rows = tokens * group
    folded = query.new_zeros(num_sequences, kv_heads, max(num_rows, MIN_GEMM_ROWS), head_dim)
    parts = query.view(num_sequences, tokens, kv_heads, group, head_dim).transpose(1, 2)
    folded[:, :, :num_rows].view(num_sequences, kv_heads, tokens, group, head_dim).copy_(parts)
    return folded.view(num_sequences * kv_heads, -1, head_dim), num_rows


def _unfold(mixed: Tensor, num_sequences: int, kv_heads: int, shape: torch.Size) -> Tensor:
    tokens, group = shape[0] // num_sequences, shape[1] // kv_heads
    parts = mixed.view(num_sequences, kv_heads, tokens, group, -1)
    return parts.transpose(1, 2).reshape(shape)
