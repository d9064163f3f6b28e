"""Runs of a model: what is generated, and how two runs of the same plans are compared."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks.gpu.rows import Check
from benchmarks.gpu.serving import Driver, Running, Served, random_tokens

NUM_TOP = 5
"""At the first token that differs, each side's must be among the other's most likely ones."""
GREEDY: tuple[dict[str, Any], ...] = ({"temperature": 0.0, "num_logprobs": NUM_TOP},)
MIXED: tuple[dict[str, Any], ...] = (
    *GREEDY,
    {"temperature": 0.8, "seed": 3},
    {"temperature": 0.9, "seed": 4, "top_p": 0.9, "top_k": 40},
    {"temperature": 0.0, "frequency_penalty": 0.5, "presence_penalty": 0.1},
    {"temperature": 1.2, "seed": 5, "min_p": 0.05},
)


class Work(NamedTuple):
    """What is generated: prompts, tokens to draw, and how a prompt is cut."""

    prompt_lengths: Sequence[int]
    num_drawn: int
    chunk: int

    @property
    def length(self) -> int:
        """More than the longest sequence has: others go on while the last prompts are computed."""
        return max(self.prompt_lengths) + self.num_drawn + sum(self.prompt_lengths) // self.chunk + 64


REAL = Work((1, 5, 33, 64, 130, 257, 700), 48, 96)
DRY = Work((1, 11), 2, 8)


def generate(
    served: Served,
    work: Work,
    samplings: Sequence[Mapping[str, Any]],
    only: Sequence[int] | None = None,
    depth: int | None = None,
) -> list[Running]:
    """Return the sequences, `only` some of them, run together. Each has the prompt of its number."""
    chosen = range(len(work.prompt_lengths)) if only is None else only
    blocks = len(work.prompt_lengths) * -(-work.length // 16)
    driver = Driver(served.open(len(work.prompt_lengths), blocks, max_batched_tokens=256))
    start_sequences(driver, served, work, samplings, chosen)
    driver.run_until_drawn(work.num_drawn, work.chunk, depth)
    return [driver.running[number] for number in chosen]


def start_sequences(
    driver: Driver,
    served: Served,
    work: Work,
    samplings: Sequence[Mapping[str, Any]],
    chosen: Sequence[int],
) -> None:
    """Start sequences: each has the prompt and the sampling of its number."""
    for number in chosen:
        prompt = random_tokens(work.prompt_lengths[number], served.architecture.vocabulary_size, seed=number)
        driver.start(number, prompt, **samplings[number % len(samplings)])


def compare_runs(
    name: str, found: Sequence[Running], expected: Sequence[Running], num_drawn: int
) -> Iterator[Check]:
    """Yield a check for each sequence: the same tokens, and no fault."""
    for number, (one, other) in enumerate(zip(found, expected, strict=True)):
        mine, theirs = one.tokens[:num_drawn], other.tokens[:num_drawn]
        place = find_first_difference(mine, theirs)
        is_whole = len(mine) == num_drawn and not one.faults
        facts: dict[str, Any] = {"num_tokens": len(mine), "first_difference": place, "faults": one.faults}
        yield Check(f"{name}, sequence {number}", is_whole and place is None, facts)


def find_first_difference(one: Sequence[int], other: Sequence[int]) -> int | None:
    """Return the first place where two lists differ, in length too, or None."""
    places = (place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    return next(places, None if len(one) == len(other) else min(len(one), len(other)))
