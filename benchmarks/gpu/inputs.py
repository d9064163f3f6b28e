"""Makes the operations' inputs in an arena, and picks the inputs of one row out of them."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from benchmarks.gpu.arena import Arena
from millrace_kernels.paged_attention.cache import BLOCK_SIZE, KvCache, KvFormat, round_heads
from millrace_kernels.sampling.columns import NO_MASK, PARAMETERS, Draws, Sampled, pack_parameters
from millrace_kernels.sampling.reference import TopLogprobs
from millrace_kernels.sampling.state import SlotState, pack_bias
from millrace_kernels.step import HeadNorms, Heads

Read = Callable[[Any], Tensor]
SAMPLINGS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 0.8},
    {"temperature": 0.8, "top_p": 0.9},
    {"temperature": 1.3, "top_k": 40, "min_p": 0.05},
    {"temperature": 0.0, "frequency": 0.5, "presence": 0.1},
    {"temperature": 0.7, "top_k": 3, "top_p": 0.5, "frequency": 0.3},
    {"temperature": 0.0, "repetition": 1.3, "has_fixed_mask": True},
    {"temperature": 0.9, "top_k": 50, "top_p": 0.9, "min_p": 0.01, "frequency": 0.2, "repetition": 1.1},
)
"""What the rows of a draw ask for, one after the other."""
ASKED: dict[str, tuple[dict[str, Any], ...]] = {
    "mixed": SAMPLINGS,
    "greedy": ({"temperature": 0.0},),
    "plain": ({"temperature": 0.8},),
    "cut": ({"temperature": 0.8, "top_p": 0.9},),
    "flat": ({"temperature": 50.0, "top_p": 0.9},),
}
"""Rows of one kind. Some mixed ones have masks or biases, too. Flat ones have more candidates than room."""
NEUTRAL: dict[str, Any] = {
    "top_k": 0, "top_p": 1.0, "min_p": 0.0, "frequency": 0.0, "presence": 0.0, "repetition": 1.0,
    "has_fixed_mask": False,
}  # fmt: skip
ROUNDED_AT_ONCE = 1024
"""Blocks of a cache that are rounded at a time: in float32 they are 128 MiB."""
NUM_KNOWN = 96
"""Tokens that each slot knows: a third is the prompt."""
NUM_BIASES = 1024
"""Biases of a slot, at most: each third row adds them."""


def read_output(output: Any) -> Tensor:
    """Return an output that is a tensor."""
    assert isinstance(output, Tensor)
    return output


class Call(NamedTuple):
    """An operation's arguments, and where its result is."""

    arguments: tuple[Any, ...]
    read: Read = read_output
    rows: Callable[[Tensor, int], Tensor] = lambda output, row: output[row : row + 1]
    """Returns one row's part of the output."""
    num_rows: int = 0
    changed: Tensor | None = None
    """The argument that the operation changes; it is then the result."""
    noted: Tensor | None = None
    """The argument in which it notes its result too."""

    def tensors(self) -> list[Tensor]:
        """Return its arguments' tensors."""
        return [one for argument in self.arguments for one in _list_tensors(argument)]


def _list_tensors(argument: Any) -> list[Tensor]:
    if isinstance(argument, KvCache):
        return _list_tensors((argument.data, argument.scales))
    parts = argument if isinstance(argument, tuple) else (argument,)
    return [one for one in parts if isinstance(one, Tensor)]


def make_attention(  # noqa: PLR0917  as the shapes in the table name them
    arena: Arena,
    dtype: torch.dtype,
    queries: list[int],
    contexts: list[int],
    heads: int,
    kv_heads: int,
    head_dim: int,
    window: int | None = None,
    kv: str = "Model",
    *,
    has_sinks: bool = False,
    draft: int = 0,
) -> Call:
    """Make a paged batch with shuffled blocks. What no sequence owns is NaN, and each table ends in NaN.

    `kv` is the format of the cache, in which NaN becomes a scale. Blocks before a row's window are NaN too,
    and its table does not name them. The first rows are of one sequence with a `draft` of so many tokens.
    """
    starts = [sum(queries[:row]) for row in range(len(queries) + 1)]
    counts = [-(-context // BLOCK_SIZE) for context in contexts]
    num_blocks = sum(counts) + 3
    order = arena.permutation(num_blocks).to(torch.int32)
    cache = arena.empty((num_blocks, 2, kv_heads, BLOCK_SIZE, head_dim), dtype)
    tables = arena.empty((len(queries), max(counts)), torch.int32).fill_(int(order[-1]))
    begin = 0
    for row, (count, context) in enumerate(zip(counts, contexts, strict=True)):
        blocks = order[begin : begin + count]
        begin += count
        num_unseen = 0 if window is None else max(0, context - queries[row] + 1 - window) // BLOCK_SIZE
        tables[row, num_unseen:count] = blocks[num_unseen:]
        _fill_blocks(arena, cache, blocks.long(), context)
        cache[blocks[:num_unseen].long()] = float("nan")
    tables[:draft] = tables[draft]
    integers = (_int32(arena, starts), _int32(arena, contexts))
    # Wide scores: a few keys then weigh most, and outputs are not so small that each error is within bounds.
    query = arena.normal((starts[-1], heads, head_dim), dtype, scale=4.0)
    sinks = arena.normal((heads,), torch.float32, scale=4.0) if has_sinks else None
    rounded = round_cache(arena, cache, KvFormat(kv))
    arguments = (query, rounded, *integers, tables, head_dim**-0.5, window, sinks)
    bounds = list(pairwise(starts))
    return Call(arguments, rows=lambda output, row: output[slice(*bounds[row])], num_rows=len(queries))


def round_cache(arena: Arena, cache: Tensor, form: KvFormat) -> KvCache:
    """Return a cache of these numbers. A head with a NaN has the scale NaN."""
    if form is KvFormat.MODEL:
        return KvCache(cache)
    begins = range(0, len(cache), ROUNDED_AT_ONCE)
    parts = [round_heads(cache[begin : begin + ROUNDED_AT_ONCE], form) for begin in begins]
    values = arena.copy(torch.cat([part.values.view(torch.int8) for part in parts]))
    scales = arena.copy(torch.cat([part.scales for part in parts]))
    return KvCache(values.view(form.stored_type(cache.dtype)), scales, form)


def _fill_blocks(arena: Arena, cache: Tensor, blocks: Tensor, context: int) -> None:
    """Write a sequence's keys and values; behind its last token stays NaN."""
    values = arena.normal((len(blocks), *cache.shape[1:]), cache.dtype)
    if used := context % BLOCK_SIZE:
        values[-1, :, :, used:] = float("nan")
    cache.index_copy_(0, blocks, values)


def pick_attention(call: Call, row: int) -> Call:
    """Return the call for one row alone."""
    query, cache, starts, contexts, tables, *others = call.arguments
    begin, end = starts[row : row + 2].tolist()
    alone = torch.tensor([0, end - begin], dtype=torch.int32, device=query.device)
    mine = (contexts[row : row + 1], tables[row : row + 1])
    return Call((query[begin:end], cache, alone, *mine, *others))


def make_rotary_kv_write(  # noqa: PLR0917  as the shapes in the table name them
    arena: Arena,
    dtype: torch.dtype,
    tokens: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    *,
    is_normed: bool = False,
    is_turned: bool = True,
    kv: str = "Model",
) -> Call:
    """Make a projection of all heads. Every fifth token pads, and the cache's other lines are NaN."""
    shape = Heads(heads, kv_heads, head_dim)
    qkv = arena.normal((tokens, (heads + 2 * kv_heads) * head_dim), dtype)
    turns = arena.normal((tokens + 7, head_dim // 2), torch.float32, scale=100.0)
    table = arena.copy(torch.stack((turns.cos(), turns.sin()))) if is_turned else None
    positions = arena.copy(arena.permutation(tokens + 7)[:tokens])
    num_blocks = -(-tokens // BLOCK_SIZE) + 3
    slots = arena.copy(arena.permutation(num_blocks * BLOCK_SIZE)[:tokens])
    slots[4::5] = -1
    cache = round_cache(
        arena, arena.empty((num_blocks, 2, kv_heads, BLOCK_SIZE, head_dim), dtype), KvFormat(kv)
    )
    query, key = (arena.normal((head_dim,), dtype) for _ in "qk")
    norms = HeadNorms(query, key, 1e-6) if is_normed else None
    return Call(
        (qkv, shape, positions, table, cache, slots, norms),
        read=lambda query: torch.cat((query.flatten(), *_read_cache(cache, dtype))),
        changed=cache.data,
        noted=cache.scales,
    )


def _read_cache(cache: KvCache, dtype: torch.dtype) -> list[Tensor]:
    """Return the cache's numbers and scales."""
    return [one.flatten().float().to(dtype) for one in (cache.data, cache.scales) if one is not None]


def make_rms_norm(arena: Arena, dtype: torch.dtype, rows: int, width: int) -> Call:
    """Make rows that are parts of wider ones, whose rest is NaN."""
    x = arena.empty((rows, width + 5), dtype)[:, :width]
    x.copy_(arena.normal((rows, width), dtype, scale=3.0))
    return Call((x, arena.normal((width,), dtype), 1e-5), num_rows=rows)


def pick_rms_norm(call: Call, row: int) -> Call:
    """Return the call for one row alone."""
    x, *others = call.arguments
    return Call((x[row : row + 1], *others))


def make_silu_mul(arena: Arena, dtype: torch.dtype, rows: int, width: int) -> Call:
    """Make gates and what they multiply."""
    return Call((arena.normal((rows, 2 * width), dtype, scale=4.0),), num_rows=rows)


def pick_first_axis(call: Call, row: int) -> Call:
    """Return the call for one row alone, where each argument has a row."""
    return Call(tuple(one[row : row + 1] for one in call.arguments))


def make_linear(
    arena: Arena, dtype: torch.dtype, rows: int, inputs: int, outputs: int, *, has_bias: bool
) -> Call:
    """Make a product whose sums are about one."""
    weight = arena.normal((outputs, inputs), dtype, scale=inputs**-0.5)
    bias = arena.normal((outputs,), dtype) if has_bias else None
    return Call((arena.normal((rows, inputs), dtype), weight, bias))


def make_linear_add(
    arena: Arena, dtype: torch.dtype, rows: int, inputs: int, outputs: int, *, has_bias: bool
) -> Call:
    """Make a product and what it is added to."""
    product = make_linear(arena, dtype, rows, inputs, outputs, has_bias=has_bias)
    residual = arena.normal((rows, outputs), dtype)
    return Call((*product.arguments, residual), changed=residual)


def make_sampling(
    arena: Arena,
    dtype: torch.dtype,
    rows: int,
    vocabulary: int,
    asks: str = "mixed",
    *,
    is_masked: bool = True,
) -> Call:
    """Make rows, of which some have equal logits. `is_masked`: some have a mask of their step."""
    logits = arena.normal((rows, vocabulary), dtype, scale=4.0)
    logits[::3, vocabulary // 2 :] = logits[::3, : vocabulary - vocabulary // 2].clone()
    width = NUM_KNOWN + 1  # the drawn token has a place too
    known = arena.copy(arena.permutation(rows * width).view(rows, width) % vocabulary)
    words = arena.permutation((2 + rows) * -(-vocabulary // 32)).view(2 + rows, -1).int() * 0x01234567 | 1
    ids = arena.permutation(vocabulary)[:NUM_BIASES].tolist()
    bias = {token: -np.inf if place % 7 == 0 else 4.0 / (1 + place) for place, token in enumerate(ids)}
    biases = arena.copy(torch.from_numpy(pack_bias(bias)).to(arena.device).repeat(rows, 1))
    state = SlotState(known, biases, arena.copy(words[2:]))
    draws = _make_draws(rows, len(bias), asks, is_masked=is_masked)
    arguments = (logits, draws, state, arena.copy(words[:2]) if is_masked else None)
    return Call(arguments, read=_read_sampled, num_rows=rows, noted=known)


def _read_sampled(sampled: Sampled) -> Tensor:
    return sampled.numbers.T.cpu()


def _make_draws(rows: int, num_biases: int, asks: str, *, is_masked: bool) -> Draws:
    kinds, is_mixed = ASKED[asks], asks == "mixed"
    asked = [NEUTRAL | kinds[row % len(kinds)] | {"seed": 977 * row + 1} for row in range(rows)]
    packed = b"".join(pack_parameters(**one) for one in asked)
    masks = [row % 2 if is_masked and is_mixed and row % 5 == 4 else NO_MASK for row in range(rows)]
    ends = [num_biases if is_mixed and row % 3 == 1 else 0 for row in range(rows)]
    places = [(row, NUM_KNOWN // 3, NUM_KNOWN - row % 7, masks[row], 0, ends[row]) for row in range(rows)]
    return Draws(np.frombuffer(packed, dtype=PARAMETERS), np.array(places, dtype=np.int64))


def pick_sampling(call: Call, row: int) -> Call:
    """Return the call for one row alone."""
    logits, draws, state, masks = call.arguments
    alone = Draws(draws.parameters[row : row + 1], draws.places[row : row + 1])
    return Call((logits[row : row + 1], alone, state, masks), read=call.read)


def make_logprobs(arena: Arena, dtype: torch.dtype, rows: int, vocabulary: int, number: int) -> Call:
    """Make rows of which every other one asks for log-probabilities."""
    logits = arena.normal((rows, vocabulary), dtype, scale=4.0)
    asking = arena.copy(torch.arange(0, rows, 2, device=arena.device))
    tokens = arena.copy(arena.permutation(rows) % vocabulary)
    return Call((logits, asking, tokens, number), read=_read_logprobs, num_rows=len(asking))


def pick_logprobs(call: Call, row: int) -> Call:
    """Return the call for one asking row alone."""
    logits, asking, tokens, number = call.arguments
    return Call((logits, asking[row : row + 1].clone(), tokens, number), read=_read_logprobs)


def _read_logprobs(found: TopLogprobs) -> Tensor:
    return torch.cat((found.drawn[:, None], found.values), dim=1)


def _int32(arena: Arena, values: list[int]) -> Tensor:
    return arena.copy(torch.tensor(values, dtype=torch.int32, device=arena.device))
