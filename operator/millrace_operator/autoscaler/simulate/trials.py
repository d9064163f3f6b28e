"""The steps that a replica tries before its first request, as `millrace serve` does: see `replica/trial.py`.

How large they are follows from how slow the replica is, so a slow one tells less. A test holds both files to
the same sizes.
"""

import math
import random
from functools import lru_cache
from typing import NamedTuple

from millrace_operator.autoscaler.signals.observation import TrialStep
from millrace_operator.autoscaler.simulate.hardware import Hardware

SHORT_CONTEXT = 8
SHORT_PROMPT, LONG_PROMPT = 64, 1024
LONGEST_SHORT_PROMPT_SECONDS = 4.0
LONGEST_PROMPT_SECONDS = 1.0
LEAST_BATCH_SECONDS = 0.2
LOADING_SHARE = 0.5
"""Of a cold start: what a replica takes to load its model. Made up; the rest is a pod and its image."""
BATCH_PER_LOADING = 0.05
MOST_SEQUENCES = 32
GROWTH = 1.025
"""Of a sequence's context, until the last one's prompt is computed."""


class Size(NamedTuple):
    """What a step computes and reads, in tokens."""

    tokens: int
    context_tokens: int


@lru_cache
def list_sizes(hardware: Hardware) -> tuple[Size, ...]:
    """Return the sizes of one token, of a long prompt and of several sequences; none for a slow replica."""
    if SHORT_PROMPT * hardware.step_seconds(1, SHORT_CONTEXT) > LONGEST_SHORT_PROMPT_SECONDS:
        return ()
    per_token = _prompt_seconds(hardware, SHORT_PROMPT) / SHORT_PROMPT
    length = int(min(LONGEST_PROMPT_SECONDS / per_token, LONG_PROMPT))
    if length < SHORT_PROMPT:
        return ()
    budget = max(BATCH_PER_LOADING * LOADING_SHARE * hardware.cold_start_seconds, LEAST_BATCH_SECONDS)
    number = int(budget / _prompt_seconds(hardware, length))
    number = max(1, min(number, MOST_SEQUENCES, hardware.max_sequences))
    chunk = min(length, hardware.max_batched_tokens)
    context = min(int(number * GROWTH * length), hardware.kv_tokens)
    return Size(1, SHORT_CONTEXT), Size(chunk, chunk), Size(number, context)


def _prompt_seconds(hardware: Hardware, length: int) -> float:
    """Return what a prompt takes, chunk by chunk."""
    chunk = min(length, hardware.max_batched_tokens)
    return math.ceil(length / chunk) * hardware.step_seconds(chunk, length)


def try_steps(hardware: Hardware, speed: float, *, is_warm: bool) -> tuple[TrialStep, ...]:
    """Return what a replica of this speed measures of them, each the middle one of some."""
    slowness = 1.0 if is_warm else hardware.slowness(0.0)
    return tuple(_try_step(hardware, size, speed, slowness) for size in list_sizes(hardware))


def _try_step(hardware: Hardware, size: Size, speed: float, slowness: float) -> TrialStep:
    rng = random.Random(f"{speed} {size.tokens}")  # noqa: S311  later requests get the same noise without it
    factor = speed * slowness * math.exp(rng.gauss(0, hardware.noise / 2))
    return TrialStep(factor * hardware.step_seconds(*size), *size)
