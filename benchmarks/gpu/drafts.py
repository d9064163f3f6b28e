"""Checks of drafts: sequences whose guesses are verified beside the same sequences without any."""

from collections.abc import Iterator, Sequence

import torch

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.rows import Check, Row
from benchmarks.gpu.runs import GREEDY, REAL, Work, compare_runs, generate, start_sequences
from benchmarks.gpu.serving import Driver, Running, Served, record, serve
from benchmarks.gpu.weights import Family
from millrace_kernels.paged_attention.cache import BLOCK_SIZE

DRY = Work((1, 11), 6, 8)
NUM_GUESSED = 4
WRONG = 3
"""Every so many guesses one is wrong: a step then draws so many tokens of a sequence."""


def check_drafts(family: Family, bench: Bench) -> Iterator[Row]:
    """Compare in float32, token for token: steps with drafts are eager, then graphs of more rows."""
    work = bench.sized(REAL, DRY)
    config = bench.sized(*family)
    served = serve(bench, config, torch.float32, work.length)
    plain = generate(served, work, GREEDY)
    texts = [one.tokens for one in plain]
    for manner, is_recorded in (("eager", False), ("graph", True)):
        found, num_steps, progress = _verify_all(served, work, texts, is_recorded=is_recorded)
        yield from compare_runs(f"drafts, {manner}", found, plain, work.num_drawn)
        facts = {"steps": num_steps, "tokens": work.num_drawn}
        yield Check(f"drafts, {manner}: a step draws several tokens", 2 * num_steps <= work.num_drawn, facts)
        if is_recorded:  # as `check_graphs` counts
            expected = (2 + bench.sized(0, config["num_hidden_layers"])) * num_steps
            facts = {"progress": progress, "expected": expected}
            yield Check("each step with drafts was a graph's", progress == expected, facts)


def _verify_all(
    served: Served, work: Work, texts: Sequence[list[int]], *, is_recorded: bool
) -> tuple[list[Running], int, int]:
    """Compute prompts, then verify guesses. Return what was drawn, and these steps with their progress."""
    count = len(texts)
    blocks, rows = count * -(-work.length // BLOCK_SIZE), count * (1 + NUM_GUESSED)
    executor = served.open(count, blocks, 256, recordable=(rows,), max_draft=NUM_GUESSED)
    driver = Driver(executor)
    start_sequences(driver, served, work, GREEDY, range(count))
    driver.run_until_drawn(1, work.chunk)
    if is_recorded:
        record(executor)
    before, num_steps = executor.progress, 0
    vocabulary = served.architecture.vocabulary_size
    while any(len(one.tokens) < work.num_drawn for one in driver.running.values()):
        guesses = {
            slot: _guess(texts[slot], len(one.tokens), vocabulary) for slot, one in driver.running.items()
        }
        driver.verify(guesses)
        num_steps += 1
    return list(driver.running.values()), num_steps, executor.progress - before


def _guess(text: Sequence[int], num_drawn: int, vocabulary: int) -> tuple[int, ...]:
    """Return a text's next tokens, some of them wrong. Behind its end all are."""
    places = range(num_drawn, num_drawn + NUM_GUESSED)
    is_wrong = [place % WRONG == WRONG - 1 for place in places]
    right = [*text[num_drawn : num_drawn + NUM_GUESSED], *[0] * NUM_GUESSED]
    return tuple((token + wrong) % vocabulary for token, wrong in zip(right, is_wrong, strict=False))
