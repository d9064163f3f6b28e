"""The part `model`: a whole model on the device beside itself on the CPU, and beside itself run otherwise.

Steps that compare two ways to run the same plans go here too: build both runs with `generate`, and compare
them with `compare_runs` (`runs.py`).
"""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise

import torch

from benchmarks.gpu.bench import Bench, Step
from benchmarks.gpu.drafts import check_drafts
from benchmarks.gpu.mixed_graphs import check_mixed_graphs
from benchmarks.gpu.prefix_hits import check_hits
from benchmarks.gpu.rows import Check, Figure, Row
from benchmarks.gpu.runs import (
    DRY,
    GREEDY,
    MIXED,
    REAL,
    Work,
    compare_runs,
    find_first_difference,
    generate,
    start_sequences,
)
from benchmarks.gpu.serving import Driver, Running, Served, record, serve, serve_twice
from benchmarks.gpu.weights import (
    SMALL_GEMMA3,
    SMALL_GPT_OSS,
    SMALL_LLAMA,
    SMALL_MIXTURE,
    SMALL_QWEN,
    SMALL_QWEN3,
    SMALL_WINDOWED,
    TINY,
    TINY_GEMMA3,
    TINY_GPT_OSS,
    TINY_MIXTURE,
    TINY_QWEN,
    TINY_QWEN3,
    TINY_WINDOWED,
    Family,
)
from millrace_fit.plan import choose_sizes
from millrace_kernels.linear.format import Format
from millrace_runtime.protocol.encoding import pack_tokens
from millrace_runtime.protocol.executor import Sleep, Wake
from millrace_runtime.protocol.sampling import Sampling, count_mask_bytes
from millrace_runtime.protocol.step import Row as PlannedRow
from millrace_runtime.protocol.step import SlotStart, StepPlan

LOGPROB_BOUND = 1e-3
"""In float32, where sums have other orders."""


FAMILIES = {
    "llama": Family(SMALL_LLAMA, TINY),
    "qwen": Family(SMALL_QWEN, TINY_QWEN),
    "qwen 3": Family(SMALL_QWEN3, TINY_QWEN3),
    "mixture": Family(SMALL_MIXTURE, TINY_MIXTURE),
    "windows": Family(SMALL_WINDOWED, TINY_WINDOWED),
    "gemma 3": Family(SMALL_GEMMA3, TINY_GEMMA3),
    "gpt-oss": Family(SMALL_GPT_OSS, TINY_GPT_OSS),
}


def check_float32(family: str, bench: Bench, form: Format | None = None) -> Iterator[Row]:
    """Compare float32 on the device with float32 on the CPU, token for token."""
    work, config = bench.sized(REAL, DRY), bench.sized(*FAMILIES[family])
    both = serve_twice(bench, config, torch.float32, work.length, form)
    device, cpu = (generate(served, work, GREEDY) for served in both)
    yield from compare_runs("greedy float32", device, cpu, work.num_drawn)
    pairs = (pair for one, two in zip(device, cpu, strict=True) for pair in _pair_logprobs(one, two))
    largest = max((abs(mine - theirs) for mine, theirs in pairs), default=float("nan"))
    yield Figure("largest difference of a log-probability", largest, "nats")


def _pair_logprobs(one: Running, other: Running) -> Iterator[tuple[float, float]]:
    """Yield both sides' log-probabilities of the tokens that both drew, up to the first difference."""
    place = find_first_difference(one.tokens, other.tokens)
    for mine, theirs in list(zip(one.logprobs, other.logprobs, strict=False))[:place]:
        yield mine.drawn, theirs.drawn


def check_bfloat16(family: str, bench: Bench, form: Format | None = None) -> Iterator[Row]:
    """Compare bfloat16 on the device with float32 on the CPU, by the rule for the first difference."""
    work, config = bench.sized(REAL, DRY), bench.sized(*FAMILIES[family])
    both = serve_twice(bench, config, torch.bfloat16, work.length, form)
    device, cpu = (generate(served, work, GREEDY) for served in both)
    for number, (one, other) in enumerate(zip(device, cpu, strict=True)):
        place = find_first_difference(one.tokens[: work.num_drawn], other.tokens[: work.num_drawn])
        is_close = place is None or _are_likely(one, other, place)
        yield Check(f"greedy bfloat16, sequence {number}", is_close, {"first_difference": place})


def _are_likely(one: Running, other: Running, place: int) -> bool:
    """Return whether each side's token is among the other's most likely ones."""
    pairs = ((one, other), (other, one))
    return all(mine.tokens[place] in theirs.logprobs[place].top_tokens for mine, theirs in pairs)


def check_depth(bench: Bench) -> Iterator[Row]:
    """Compare two steps in flight with one: the same plans, so the same tokens. And a run with itself."""
    work = bench.sized(REAL, DRY)
    served = serve(bench, bench.sized(SMALL_LLAMA, TINY), torch.bfloat16, work.length)
    one, two, again = (generate(served, work, MIXED, depth=depth) for depth in (1, 2, 2))
    yield from compare_runs("depth 2 against 1", two, one, work.num_drawn)
    yield from compare_runs("a second run", again, two, work.num_drawn)


def check_graphs(bench: Bench, form: Format | None = None) -> Iterator[Row]:
    """Compare decode steps that are repeated from a graph with eager ones, token for token.

    A graph has one row more than sequences. Eager steps have another sequence in its place, because cuBLAS
    may choose another algorithm for another number of rows.
    """
    work, config = bench.sized(REAL, DRY), bench.sized(SMALL_LLAMA, TINY)
    served = serve(bench, config, torch.bfloat16, work.length, form)
    eager, _ = _decode_padded(served, work, is_recorded=False)
    graph, progress = _decode_padded(served, work, is_recorded=True)
    yield from compare_runs("graphs against eager", graph, eager, work.num_drawn)
    # A repetition counts as progress once, and so does each draw. A dry run's computes its layers again.
    expected = (2 + bench.sized(0, config["num_hidden_layers"])) * work.num_drawn
    facts = {"progress": progress, "expected": expected}
    yield Check("each step was a graph's", progress == expected, facts)


def _decode_padded(served: Served, work: Work, *, is_recorded: bool) -> tuple[list[Running], int]:
    """Compute prompts eagerly, then decode. Return what was drawn then, and the progress of these steps."""
    count = len(work.prompt_lengths)
    blocks = (count + 1) * -(-work.length // 16)
    executor = served.open(count + 1, blocks, 256, recordable=(count + 1,))
    driver = Driver(executor)
    start_sequences(driver, served, work, MIXED, range(count))
    driver.run_until_drawn(1, work.chunk)
    sequences = list(driver.running.values())
    for one in sequences:
        one.tokens.clear()
    if is_recorded:
        record(executor)
    else:
        driver.start(count, [1, 2, 3], is_computed=True)
    before = executor.progress
    driver.run(work.num_drawn)
    return sequences, executor.progress - before


def check_recordings(bench: Bench) -> Iterator[Row]:
    """Compare steps of each recorded size alone with the same size among all, recorded for the second time.

    All share memory: one that another one spoils would draw other tokens. And report what memory they take.
    """
    work = bench.sized(REAL, DRY)
    served = serve(bench, bench.sized(SMALL_LLAMA, TINY), torch.bfloat16, work.length)
    sizes = bench.sized((1, 2, 4, 8), (1, 2))
    for size in sizes:
        count = min(size, len(work.prompt_lengths))
        alone = _decode_recorded(served, work, count, (size,))
        among = _decode_recorded(served, work, count, sizes, is_second_time=True)
        yield from compare_runs(f"{size} rows among all sizes", among, alone, work.num_drawn)
    executor = served.open(8, 8 * -(-work.length // 16), 64, choose_sizes(bench.sized(256, 2)))
    bench.device.give_back_unused()
    before = bench.device.free_bytes()
    record(executor)
    taken = (before - bench.device.free_bytes()) / 2**20
    yield Figure(f"memory of {len(executor.limits.recordable)} recorded sizes", taken, "MiB")


def _decode_recorded(
    served: Served, work: Work, count: int, sizes: Sequence[int], *, is_second_time: bool = False
) -> list[Running]:
    """Compute prompts eagerly, and then decode what was recorded in between."""
    blocks = count * -(-work.length // 16)
    executor = served.open(count, blocks, 256, recordable=sizes)
    if is_second_time:
        record(executor)
        executor.control(Sleep())
        executor.control(Wake())
    driver = Driver(executor)
    start_sequences(driver, served, work, MIXED, range(count))
    driver.run_until_drawn(1, work.chunk)
    sequences = list(driver.running.values())
    for one in sequences:
        one.tokens.clear()
    record(executor)
    driver.run(work.num_drawn)
    return sequences


def compare_batches(bench: Bench) -> Iterator[Row]:
    """Tell how many sequences draw the same tokens alone and together. cuBLAS does not promise any."""
    work = bench.sized(REAL, DRY)
    for dtype in bench.sized((torch.float32, torch.bfloat16), (torch.bfloat16,)):
        served = serve(bench, bench.sized(SMALL_LLAMA, TINY), dtype, work.length)
        together = generate(served, work, GREEDY)
        numbers = range(len(work.prompt_lengths))
        alone = [generate(served, work, GREEDY, only=[number])[0] for number in numbers]
        same = [
            one.tokens[: work.num_drawn] == other.tokens[: work.num_drawn]
            for one, other in zip(alone, together, strict=True)
        ]
        yield Figure(f"same tokens alone and together, {dtype}", sum(same) / len(same), "share")


def check_logprobs(bench: Bench) -> Iterator[Row]:
    """Compare log-probabilities with the CPU's: of the drawn token alone, and with one and 20 others."""
    work, config = bench.sized(REAL, DRY), bench.sized(SMALL_LLAMA, TINY)
    asked = [{"temperature": 0.0, "num_logprobs": number} for number in (20, 0, 1)]
    both = serve_twice(bench, config, torch.float32, work.length)
    device, cpu = (generate(served, work, asked) for served in both)
    for number, (one, other) in enumerate(zip(device, cpu, strict=True)):
        wanted = asked[number % len(asked)]["num_logprobs"]
        first, exact = one.logprobs[0], other.logprobs[0]
        facts = {"drawn": [first.drawn, exact.drawn], "top": [first.top_logprobs, exact.top_logprobs]}
        pairs = zip([first.drawn, *first.top_logprobs], [exact.drawn, *exact.top_logprobs], strict=False)
        is_close = all(abs(mine - theirs) < LOGPROB_BOUND for mine, theirs in pairs)
        has_all = len(first.top_tokens) == len(exact.top_tokens) == wanted
        yield Check(f"{wanted} log-probabilities, sequence {number}", is_close and has_all, facts)


def check_masks(bench: Bench) -> Iterator[Row]:
    """Allow one token to a row, another to the next, and all to the third."""
    config = bench.sized(SMALL_LLAMA, TINY)
    executor = serve(bench, config, torch.bfloat16, 64).open(3, 12, 64)
    vocabulary = executor.limits.vocabulary_size
    allowed = [7, vocabulary - 1]
    starts = [
        SlotStart(slot, 0, pack_tokens([1, 2, 3]), 0, [[slot]], Sampling(temperature=0.9, seed=slot), 3)
        for slot in range(3)
    ]
    rows = [PlannedRow(slot, 3, emit=True, is_masked=slot < 2) for slot in range(3)]
    executor.submit(StepPlan(0, [], starts, [], rows))
    masks = b"".join((1 << token).to_bytes(count_mask_bytes(vocabulary), "little") for token in allowed)
    executor.provide_masks(0, memoryview(masks))
    drawn = [row.tokens for row in executor.collect().rows]
    facts = {"allowed": allowed, "drawn": drawn}
    yield Check("masked rows draw what is allowed", drawn[:2] == [[one] for one in allowed], facts)
    yield Check("the row beside them draws", len(drawn[2]) == 1, facts)


def check_sleep(bench: Bench) -> Iterator[Row]:
    """Free the KV cache and allocate it again."""
    served = serve(bench, bench.sized(SMALL_LLAMA, TINY), torch.bfloat16, 64)
    executor = served.open(1, bench.sized(20000, 20), 64)
    moments = [bench.device.free_bytes()]
    for command in (Sleep(), Wake()):
        executor.control(command)
        bench.device.synchronize()
        moments.append(bench.device.free_bytes())
    freed, taken = (after - before for before, after in pairwise(moments))
    yield Figure("memory that sleep frees", freed / 2**20, "MiB")
    is_real = bench.sized(real=True, dry=False)
    yield Check("sleep frees memory and waking takes it again", not is_real or freed > 0 > taken)


STEPS: dict[str, Step] = {
    **{f"{family} float32 parity": partial(check_float32, family) for family in ("llama", "qwen")},
    **{f"{family} bfloat16 parity": partial(check_bfloat16, family) for family in ("llama", "qwen")},
    "depth": check_depth,
    "graphs": check_graphs,
    "mixed graphs": check_mixed_graphs,
    "recordings": check_recordings,
    "log-probabilities": check_logprobs,
    "prefix hits": partial(check_hits, FAMILIES["llama"]),
    "drafts": partial(check_drafts, FAMILIES["llama"]),
    "masks": check_masks,
    "sleep": check_sleep,
    "batches": compare_batches,
}
