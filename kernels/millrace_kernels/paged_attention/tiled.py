"""Paged attention on CPUs: float32 tiles of 256 keys anchored at position 0.

A sequence's bits depend only on the sequence: see README.md. The index and mask tensors of a step are planned
once, for all layers.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from millrace_kernels.linear.reference import MIN_GEMM_ROWS
from millrace_kernels.paged_attention.cache import KvCache

TILE_KEYS = 256
HEAD_DIM_UNIT = 4
"""Heads of 6 or 10 dimensions are padded with zeros: otherwise their bits depend on the number of rows."""
QUERIES_AT_ONCE = 128
"""A longer chunk of prefill is split: scores then stay in the cache, and causality skips whole tiles."""
LEAST_SCORE = -1e30
"""The least maximum of a query's scores: it sees no key of a tile that lies before its window."""
SEQUENCE_HEADS_AT_ONCE = 32
"""Decoding sequences times KV heads in one batch: with 64 dimensions their tiles take 4 MB."""


@dataclass(frozen=True, slots=True)
class Piece:
    """`num_tokens` queries of one row: they begin at `start` in the step and end at `end` in the sequence."""

    row: int
    start: int
    num_tokens: int
    end: int
    first_key: int
    """That the first query sees. Table entries and memory before it may be another sequence's."""

    @property
    def first_tile(self) -> int:
        """The number of the tile with the first key."""
        return self.first_key // TILE_KEYS

    @property
    def num_tiles(self) -> int:
        """The number of tiles with keys that a query sees."""
        return -(-self.end // TILE_KEYS) - self.first_tile


@dataclass(frozen=True, slots=True)
class Tile:
    """256 keys of each of the first `num_sequences` sequences of a group, each from a key of its own on."""

    num_sequences: int
    gather: Tensor
    """Rows of the cache seen as [blocks * 2 * kv_heads, block_size * head_dim]: keys, then values."""
    is_hidden: Tensor | None
    """[1, 1, tokens, 1, 256] for a chunk of prefill: keys after the query or before its window. None if every
    key is visible, or if `foreign` has all that are not."""
    foreign: list[tuple[int, slice]]
    """(sequence, keys) before a sequence's first key and behind its end: memory there may hold anything.

    Slices, because filling a few is 7 times as fast as a broadcast mask over 8 decodes (tried).
    """


@dataclass(frozen=True, slots=True)
class Group:
    """Pieces of equal length, computed as one batch, the one with the most tiles first."""

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
        *,
        window: int | None = None,
    ) -> None:
        """With a window a query sees its own key and the `window` - 1 before it."""
        if TILE_KEYS % block_size:
            raise ValueError(f"block size {block_size} does not divide the tile of {TILE_KEYS} keys")
        self._kv_heads = num_kv_heads
        self._tables = _widen(block_tables, TILE_KEYS // block_size)
        self._blocks_per_tile = TILE_KEYS // block_size
        self._window = window
        pieces = list(_cut(query_starts, context_lengths, window))
        self._groups = [self._plan_group(group) for group in _group(pieces, num_kv_heads)]

    def __call__(self, query: Tensor, kv_cache: KvCache, scale: float, sinks: Tensor | None = None) -> Tensor:
        """Attend; shapes as in `paged_attention_reference`. Tokens of no row get zeros."""
        output = torch.zeros_like(query)
        for group in self._groups:
            rows = _fill_up(query.index_select(0, group.tokens).float().mul_(scale))
            mixed = self._attend(group, rows, kv_cache, sinks)[..., : query.shape[-1]]
            output.index_copy_(0, group.tokens, mixed.to(query.dtype))
        return output

    def _plan_group(self, pieces: list[Piece]) -> Group:
        tokens = torch.tensor([p.start + i for p in pieces for i in range(p.num_tokens)])
        tiles = [self._plan_tile(pieces, number) for number in range(pieces[0].num_tiles)]
        return Group(tokens, len(pieces), tiles)

    def _plan_tile(self, pieces: list[Piece], number: int) -> Tile:
        """Plan each piece's tile with this number, counted from its first tile."""
        pieces = [piece for piece in pieces if piece.num_tiles > number]
        tiles = torch.tensor([piece.first_tile + number for piece in pieces])
        begins = (tiles * TILE_KEYS).tolist()
        foreign = [
            (place, keys)
            for place, (piece, begin) in enumerate(zip(pieces, begins, strict=True))
            for keys in (slice(0, piece.first_key - begin), slice(piece.end - begin, TILE_KEYS))
            if keys.start < keys.stop
        ]
        is_hidden = self._hide(pieces[0], begins[0]) if pieces[0].num_tokens > 1 else None
        return Tile(len(pieces), self._gather_index(pieces, tiles), is_hidden, foreign)

    def _hide(self, chunk: Piece, begin: int) -> Tensor | None:
        """Return which of 256 keys from `begin` on each query of a chunk does not see; None: it sees all."""
        own = torch.arange(chunk.end - chunk.num_tokens, chunk.end)[:, None]
        keys = torch.arange(begin, begin + TILE_KEYS)
        is_hidden = keys > own
        if self._window is not None:
            is_hidden |= keys <= own - self._window
        return is_hidden[None, None, :, None, :] if is_hidden.any() else None

    def _gather_index(self, pieces: list[Piece], tiles: Tensor) -> Tensor:
        rows = torch.tensor([piece.row for piece in pieces])[:, None]
        columns = tiles[:, None] * self._blocks_per_tile + torch.arange(self._blocks_per_tile)
        blocks = self._tables[rows, columns]
        heads = torch.arange(self._kv_heads)[None, :, None]
        keys = blocks[:, None, :] * (2 * self._kv_heads) + heads
        return torch.stack((keys, keys + self._kv_heads)).flatten()

    def _attend(self, group: Group, query: Tensor, kv_cache: KvCache, sinks: Tensor | None) -> Tensor:
        """Return [sequences * tokens, heads, head_dim] in float32."""
        folded, num_rows = _fold(query, group.num_sequences, self._kv_heads)
        best = total = mixed = torch.empty(0)
        for number, tile in enumerate(group.tiles):
            size = tile.num_sequences * self._kv_heads
            keys, values = self._load(tile, kv_cache)
            scores = torch.bmm(folded[:size], keys.transpose(1, 2))
            self._mask(scores, tile, num_rows)
            if number == 0:
                # Finite also for a query whose window begins behind this tile.
                best = scores.amax(dim=-1, keepdim=True).clamp_(min=LEAST_SCORE)
                weights = scores.sub_(best).exp_()
                total, mixed = weights.sum(dim=-1, keepdim=True), torch.bmm(weights, values)
                continue
            now = torch.maximum(best[:size], scores.amax(dim=-1, keepdim=True))
            shrink = (best[:size] - now).exp_()
            weights = scores.sub_(now).exp_()
            total[:size].mul_(shrink).add_(weights.sum(dim=-1, keepdim=True))
            mixed[:size].mul_(shrink).add_(torch.bmm(weights, values))
            best[:size] = now
        if sinks is not None:
            heads = sinks.view(1, self._kv_heads, 1, -1)
            shape = (group.num_sequences, self._kv_heads, num_rows // heads.shape[-1], heads.shape[-1])
            total[:, :num_rows] += (heads.expand(shape).reshape(-1, num_rows, 1) - best[:, :num_rows]).exp_()
        return _unfold(mixed.div_(total)[:, :num_rows], group.num_sequences, self._kv_heads, query.shape)

    def _load(self, tile: Tile, kv_cache: KvCache) -> tuple[Tensor, Tensor]:
        """Return the tile's keys and values, each float32 [sequences * kv_heads, 256, padded head_dim]."""
        head_dim = kv_cache.head_dim
        lines = kv_cache.data.view(-1, kv_cache.block_size * head_dim).index_select(0, tile.gather)
        pair = lines.float().view(2, tile.num_sequences, self._kv_heads, TILE_KEYS, head_dim)
        if (scales := kv_cache.scales) is not None:
            mine = scales.view(-1, kv_cache.block_size).index_select(0, tile.gather)
            pair *= mine.float().view(*pair.shape[:-1], 1)
        for number, keys_of_others in tile.foreign:
            pair[1, number, :, keys_of_others].zero_()
        keys, values = _fill_up(pair).flatten(1, 2).unbind()
        return keys, values

    def _mask(self, scores: Tensor, tile: Tile, num_rows: int) -> None:
        """Mask hidden keys. Padding rows are not masked, because nothing reads them."""
        if tile.is_hidden is None:
            parts = scores.view(tile.num_sequences, self._kv_heads, -1, TILE_KEYS)
            for number, keys in tile.foreign:
                parts[number, :, :, keys] = float("-inf")
            return
        num_tokens = tile.is_hidden.shape[2]
        shape = (tile.num_sequences, self._kv_heads, num_tokens, num_rows // num_tokens, TILE_KEYS)
        scores[:, :num_rows].view(shape).masked_fill_(tile.is_hidden, float("-inf"))


def _fill_up(heads: Tensor) -> Tensor:
    """Pad the last axis to a multiple of HEAD_DIM_UNIT."""
    missing = -heads.shape[-1] % HEAD_DIM_UNIT
    return torch.nn.functional.pad(heads, (0, missing)) if missing else heads


def _widen(block_tables: Tensor, multiple: int) -> Tensor:
    """Widen the tables to whole tiles. Entries without a block read block 0, which is masked."""
    missing = -block_tables.shape[1] % multiple
    return torch.nn.functional.pad(block_tables.long(), (0, missing)).clamp_(min=0)


def _cut(query_starts: Sequence[int], context_lengths: Sequence[int], window: int | None) -> Iterator[Piece]:
    for row, context in enumerate(context_lengths):
        start, stop = query_starts[row], query_starts[row + 1]
        for begin in range(start, stop, QUERIES_AT_ONCE):
            end = min(begin + QUERIES_AT_ONCE, stop)
            last = context - (stop - end)
            first_key = 0 if window is None else max(0, last - (end - begin) + 1 - window)
            yield Piece(row, begin, end - begin, last, first_key)


def _group(pieces: list[Piece], num_kv_heads: int) -> Iterator[list[Piece]]:
    """Batch the single queries, most tiles first; a chunk of prefill is a group of its own."""
    singles = sorted((p for p in pieces if p.num_tokens == 1), key=lambda piece: -piece.num_tiles)
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
