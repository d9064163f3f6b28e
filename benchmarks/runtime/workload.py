"""What every engine is asked, and the one figure that an answer gives."""

import dataclasses
import enum
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, Self

from benchmarks.runtime.errors import EngineError

PRECISIONS = ("bf16", "int8", "int4")
"""Of the weights."""
SHARED_PREFIX = "shared_prefix"
"""The case of `loads/chats.py`."""
FIRST_TOKEN, END_TOKEN = 300, 32_000
"""Prompts are drawn from [FIRST_TOKEN, END_TOKEN): above the special tokens, below every vocabulary's end."""
QUICK_OUTPUT_TOKENS = 12


class Figure(enum.StrEnum):
    """Which rate a case is about, in tokens a second."""

    DECODE = "output tokens/s after the first"
    PREFILL = "prompt tokens/s until the first output token"
    OUTPUT = "output tokens/s of all requests together"


class Completion(NamedTuple):
    """What became of one request; times in seconds of one clock."""

    sent: float
    first_token: float
    last_token: float
    num_tokens: int
    num_first_tokens: int = 1
    """Those that came together at `first_token`; 1 where a server does not say."""


class Answering(Protocol):
    """An engine."""

    def complete(self, case: "Case", prompts: list[list[int]]) -> list[Completion]:
        """Answer all prompts at once. Raises EngineError."""


def draw_tokens(draw: random.Random, count: int) -> list[int]:
    """Return so many random token ids."""
    return [draw.randrange(FIRST_TOKEN, END_TOKEN) for _ in range(count)]


@dataclass(frozen=True)
class Case:
    """Some requests sent at once.

    All prompts differ, and an engine is asked once with each seed: no prefix cache knows any of them.
    """

    name: str
    figure: Figure
    num_requests: int
    num_prompt_tokens: int
    num_output_tokens: int

    def shorten(self) -> Self:
        """Return the same case with few output tokens: for warming up and trying out."""
        return dataclasses.replace(self, num_output_tokens=min(self.num_output_tokens, QUICK_OUTPUT_TOKENS))

    def draw_prompts(self, seed: str) -> list[list[int]]:
        """Return the prompts of a round: every engine gets the same."""
        draw = random.Random(f"{self.name}-{seed}")  # noqa: S311  a workload, no secret
        return [draw_tokens(draw, self.num_prompt_tokens) for _ in range(self.num_requests)]

    def answer(self, engine: Answering, seed: str) -> list[Completion]:
        """Have an engine answer the prompts of a seed. Raises EngineError."""
        return engine.complete(self, self.draw_prompts(seed))


CASES = (
    Case("single", Figure.DECODE, 1, 128, 128),
    Case("prefill", Figure.PREFILL, 1, 1024, 1),
    Case("c8", Figure.OUTPUT, 8, 128, 64),
    Case("c32", Figure.OUTPUT, 32, 128, 64),
)
WAKE = Case("wake", Figure.OUTPUT, 1, 16, 4)
"""What an engine that was stopped is asked before its turn counts."""


def read_completion(found: Sequence[Any]) -> Completion:
    """Return what was noted of a request. Raises EngineError where no token came: then it has no times."""
    if None in found:
        raise EngineError("an answer ended without a token")
    return Completion(*found)


def compute_rate(case: Case, completions: Sequence[Completion]) -> float:
    """Return the case's figure from all its completions."""
    began = min(completion.sent for completion in completions)
    first = min(completion.first_token for completion in completions)
    ended = max(completion.last_token for completion in completions)
    num_tokens = sum(completion.num_tokens for completion in completions)
    match case.figure:
        case Figure.DECODE:
            num_first = sum(completion.num_first_tokens for completion in completions)
            return (num_tokens - num_first) / (ended - first)
        case Figure.PREFILL:
            return case.num_requests * case.num_prompt_tokens / (first - began)
        case Figure.OUTPUT:
            return num_tokens / (ended - began)


def find_fault(case: Case, completions: Sequence[Completion]) -> str | None:
    """Return in what the completions are not what was asked for, or None."""
    lengths = sorted({completion.num_tokens for completion in completions})
    if len(completions) == case.num_requests and lengths == [case.num_output_tokens]:
        return None
    return (
        f"{case.name}: {len(completions)} answers of {lengths} tokens instead of {case.num_requests} of"
        f" {case.num_output_tokens}; have it ignore the end-of-text token"
    )
