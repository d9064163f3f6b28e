"""Speed of single operations: attention beside torch's, experts beside their bytes, and the others' times."""

import statistics
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.gpu import experts
from benchmarks.gpu.arena import Arena
from benchmarks.gpu.bench import Bench
from benchmarks.gpu.cases import OPERATIONS, plan_attention
from benchmarks.gpu.costs import BF16_BYTES, count_pairs
from benchmarks.gpu.device import measure_seconds
from benchmarks.gpu.inputs import Call, make_attention
from benchmarks.gpu.limits import measure_bandwidth, measure_matrix_rate
from benchmarks.gpu.rows import Figure, Row, at_least, at_most
from millrace_kernels.experts.reference import route_reference
from millrace_kernels.step import Heads

ROUNDS = 10
DECODES = ((64, 4096), (32, 8192), (16, 16384), (8, 32768))
"""Sequences and tokens of each: 1 GiB of keys and values, far more than caches hold."""
ROUNDED_DECODES = {"Fp8": ((64, 4096), (8, 32768)), "Int8": ((8, 32768),)}
"""By the cache's format."""
ROUNDED_SPEED, PREFILL_SPEED = at_least(1.6), at_least(0.9)
PROMPT = 4096
CONTEXT, WINDOW, CHUNK = 8192, 1024, 2048
"""Tokens of sequences whose layers have windows, and of a chunk of such a prompt."""


def _median(bench: Bench, run: Callable[[], object]) -> float:
    return statistics.median(measure_seconds(bench.device, run, bench.sized(ROUNDS, 1)))


def _heads(bench: Bench) -> Heads:
    return bench.sized(Heads(32, 8, 128), Heads(4, 2, 8))


def _attention(
    bench: Bench, queries: list[int], contexts: list[int], window: int | None = None, kv: str = "Model"
) -> Call:
    heads = _heads(bench)
    shape = (heads.num_heads, heads.num_kv_heads, heads.head_dim)
    return make_attention(Arena(bench.where), torch.bfloat16, queries, contexts, *shape, window, kv)


def measure_decode_attention(bench: Bench) -> Iterator[Row]:
    """Compare paged attention of one token with the copy's bandwidth, and with torch's attention."""
    bandwidth = measure_bandwidth(bench)
    heads = _heads(bench)
    for num_sequences, context in bench.sized((*DECODES, (1, 32768)), ((2, 20),)):
        call = _attention(bench, [1] * num_sequences, [context] * num_sequences)
        seconds = _median(bench, plan_attention(*call.arguments))
        dense = _dense_decodes(bench, num_sequences, context, heads)
        torch_seconds = min(_median(bench, one) for one in dense)
        moved = BF16_BYTES * 2 * num_sequences * heads.num_kv_heads * heads.head_dim * context
        name = f"decode attention {num_sequences}x{context}"
        # One sequence has an eighth of the bytes: too little work for an aim.
        aim = at_least(0.85) if num_sequences > 1 else None
        facts = {"kv_bytes": moved, "seconds": seconds, "torch_seconds": torch_seconds}
        yield Figure(f"{name}: share of bandwidth", moved / seconds / bandwidth, "", aim, facts)
        yield Figure(f"{name}: speed over torch's", torch_seconds / seconds, "", at_least(1.0))


def measure_rounded_attention(bench: Bench) -> Iterator[Row]:
    """Compare decode over a cache of 8 bits with the same over one in bfloat16, and with the bandwidth."""
    bandwidth, heads = measure_bandwidth(bench), _heads(bench)
    for kv, decodes in ROUNDED_DECODES.items():
        for count, context in bench.sized(decodes, ((2, 20),)):
            seconds, plain = (
                _median(
                    bench,
                    plan_attention(*_attention(bench, [1] * count, [context] * count, kv=one).arguments),
                )
                for one in (kv, "Model")
            )
            moved = 2 * count * heads.num_kv_heads * (heads.head_dim + BF16_BYTES) * context
            name = f"decode attention {count}x{context}, KV {kv}"
            facts = {"kv_bytes": moved, "seconds": seconds, "bfloat16_seconds": plain}
            aim = ROUNDED_SPEED if kv == "Fp8" and context > PROMPT else None
            yield Figure(f"{name}: speed over bfloat16's", plain / seconds, "", aim, facts)
            yield Figure(f"{name}: share of bandwidth", moved / seconds / bandwidth, "")


def _dense_decodes(
    bench: Bench, num_sequences: int, context: int, heads: Heads
) -> Sequence[Callable[[], Tensor]]:
    """Return two ways to do the same with torch, whose keys and values lie one after the other.

    In the second one a group's heads are the queries of one head: torch then has less to do.
    """
    shape = (num_sequences, heads.num_kv_heads, context, heads.head_dim)
    key, value = (torch.randn(shape, device=bench.where).bfloat16() for _ in range(2))
    query = torch.randn(num_sequences, heads.num_heads, 1, heads.head_dim, device=bench.where).bfloat16()
    folded = query.view(num_sequences, heads.num_kv_heads, -1, heads.head_dim)
    attend = functional.scaled_dot_product_attention
    return (
        lambda: attend(query, key, value, enable_gqa=True),
        lambda: attend(folded, key, value),
    )


def measure_prefill_attention(bench: Bench) -> Iterator[Row]:
    """Compare paged attention of a prompt with the matrix rate, and with torch's attention."""
    rate = measure_matrix_rate(bench)
    heads = _heads(bench)
    length = bench.sized(PROMPT, 20)
    call = _attention(bench, [length], [length])
    seconds = _median(bench, plan_attention(*call.arguments))
    query, key, value = (
        torch.randn(1, count, length, heads.head_dim, device=bench.where).bfloat16()
        for count in (heads.num_heads, heads.num_kv_heads, heads.num_kv_heads)
    )
    torch_seconds = _median(
        bench,
        lambda: functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True),
    )
    flops = 4 * heads.num_heads * heads.head_dim * count_pairs(length, length)
    name = f"prefill attention of {length} tokens"
    yield Figure(f"{name}: share of matrix rate", flops / seconds / rate, "")
    yield Figure(f"{name}: speed over torch's", torch_seconds / seconds, "", PREFILL_SPEED)
    yield Figure(f"{name}: time", seconds * 1e3, "ms")


def measure_windowed_attention(bench: Bench) -> Iterator[Row]:
    """Compare decode and a chunk of prefill with what their windows have to read and to multiply.

    And with sequences that are no longer than the window, or with the same ones without a window.
    """
    context, window, chunk = bench.sized((CONTEXT, WINDOW, CHUNK), (40, 9, 16))
    heads, told = _heads(bench), f"{context} tokens, window {window}"
    for count in bench.sized((64, 8, 1), (2,)):
        windowed, short = (
            _median(bench, plan_attention(*_attention(bench, [1] * count, [length] * count, limit).arguments))
            for length, limit in ((context, window), (window, None))
        )
        moved = BF16_BYTES * 2 * count * heads.num_kv_heads * heads.head_dim * window
        share = moved / windowed / measure_bandwidth(bench)
        name = f"decode attention {count}x{told}"
        yield Figure(f"{name}: share of bandwidth", share, "", facts={"kv_bytes": moved, "seconds": windowed})
        yield Figure(f"{name}: time over {window} tokens", windowed / short, "", at_most(1.1))
    windowed, whole = (
        _median(bench, plan_attention(*_attention(bench, [chunk], [context], limit).arguments))
        for limit in (window, None)
    )
    flops = 4 * heads.num_heads * heads.head_dim * chunk * window
    moved = BF16_BYTES * 2 * heads.num_kv_heads * heads.head_dim * (chunk + window - 1)
    facts = {"kv_bytes": moved, "seconds": windowed, "seconds_without_window": whole}
    name = f"prefill attention of {chunk} of {told}"
    yield Figure(
        f"{name}: share of matrix rate", flops / windowed / measure_matrix_rate(bench), "", facts=facts
    )
    yield Figure(f"{name}: time over none", windowed / whole, "")


def measure_operations(bench: Bench) -> Iterator[Row]:
    """Tell each other operation's time, and the bandwidth of what it has to read and write at least."""
    bandwidth = measure_bandwidth(bench)
    for name, operation in OPERATIONS.items():
        function, dtype = operation.launch(), operation.timed_type
        for shape in bench.sized(operation.timed, operation.shapes.dry if operation.timed else ()):
            call = operation.make(Arena(bench.where), dtype, **shape)
            seconds = _median(bench, partial(function, *call.arguments))
            result = call.read(function(*call.arguments))
            read = sum(one.nbytes for one in call.tensors() if one is not call.changed)
            written = read if call.changed is not None else result.nbytes
            facts = {"share_of_bandwidth": (read + written) / seconds / bandwidth}
            told = " ".join(str(value) for value in shape.values())
            yield Figure(f"{name} {told}", seconds * 1e6, "us", facts=facts)


def measure_experts(bench: Bench) -> Iterator[Row]:
    """Tell the time of a layer's mixture, and its share of the bandwidth for the chosen experts' weights."""
    bandwidth = measure_bandwidth(bench)
    for shape in bench.sized(experts.REAL[:3], experts.DRY[:1]):
        call = experts.make_experts(Arena(bench.where), torch.bfloat16, **shape)
        _, scores, gates, downs, _, routing, *_ = call.arguments
        run = partial(experts.mix, *call.arguments)
        seconds = _median(bench, run)
        num_read = len(set(route_reference(scores, routing).experts.flatten().tolist()))
        weights = num_read * sum(one[0].numel() * one.itemsize for one in (gates, downs))
        facts = {"experts_read": num_read, "weight_bytes": weights}
        name = f"experts {shape['rows']} rows, {shape['num_chosen']} of {shape['num_experts']}"
        yield Figure(f"{name}: time", seconds * 1e6, "us", facts=facts)
        yield Figure(f"{name}: share of bandwidth", weights / seconds / bandwidth, "")
