"""Checks of prefix hits: sequences that begin with another one's blocks beside the same computed whole."""

from collections.abc import Iterator

import torch

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.rows import Row
from benchmarks.gpu.runs import GREEDY, REAL, Work, compare_runs, generate, start_sequences
from benchmarks.gpu.serving import Driver, random_tokens, serve
from benchmarks.gpu.weights import Family
from millrace_kernels.paged_attention.cache import BLOCK_SIZE

DRY = Work((11, 20, 33), 2, 8)
"""One prompt has no whole block, one a block and more, and of one a token is left."""


def check_hits(family: Family, bench: Bench) -> Iterator[Row]:
    """Compare hits in float32, token for token. Both sequences go on beside each other, from shared blocks.

    A hit is as long as it may be: all whole blocks, but not the last token.
    """
    work = bench.sized(REAL, DRY)
    served = serve(bench, bench.sized(*family), torch.float32, work.length)
    whole = generate(served, work, GREEDY)
    numbers = range(len(work.prompt_lengths))
    blocks = 2 * len(numbers) * -(-work.length // BLOCK_SIZE)
    driver = Driver(served.open(2 * len(numbers), blocks, max_batched_tokens=256))
    start_sequences(driver, served, work, GREEDY, numbers)
    driver.run_until_drawn(1, work.chunk)
    for number, length in enumerate(work.prompt_lengths):
        prompt = random_tokens(length, served.architecture.vocabulary_size, seed=number)
        shared = driver.running[number].blocks[: (length - 1) // BLOCK_SIZE]
        driver.start(len(numbers) + number, prompt, shared=shared, **GREEDY[0])
    driver.run_until_drawn(work.num_drawn, work.chunk)
    hits = [driver.running[len(numbers) + number] for number in numbers]
    yield from compare_runs("a prefix hit", hits, whole, work.num_drawn)
    owners = [driver.running[number] for number in numbers]
    yield from compare_runs("whose blocks are shared", owners, whole, work.num_drawn)
