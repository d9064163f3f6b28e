"""Draws tokens from logits. A row's draw depends on nothing but its logits, parameters, position and mask."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from torch import Tensor

from millrace_kernels.sampling.columns import NO_MASK, PARAMETERS, Draws, pack_parameters
from millrace_kernels.sampling.logprobs import TopLogprobs
from millrace_kernels.sampling.sampler import Sampler
from millrace_kernels.transfer import download, upload
from millrace_runtime.protocol.sampling import Sampling


class Draw(NamedTuple):
    """What a row's draw needs beside its logits."""

    sampling: Sampling
    position: int
    """Index in the sequence that the drawn token gets."""
    slot: int
    num_prompt: int
    mask: int | None = None
    """The number of its mask among the step's; None: every token is allowed."""


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Log-probabilities of the rows that want the same number of them, still on the device."""

    places: list[int]
    """The numbers of these rows."""
    top: TopLogprobs

    def download(self) -> "Logprobs":
        """Return the same on the host, where it comes once the device is there."""
        return Logprobs(self.places, TopLogprobs(*map(download, self.top)))


@dataclass(frozen=True, slots=True)
class Drawn:
    """A step's draws, still on the device."""

    tokens: Tensor
    """int64 [rows]"""
    faults: Tensor
    """uint8 [rows], as in Sampled. A token with a fault means nothing."""
    logprobs: list[Logprobs]
    """By number wanted; empty where no row asked."""

    def download(self) -> "Drawn":
        """Return the same on the host, where it comes once the device is there."""
        return Drawn(download(self.tokens), download(self.faults), [one.download() for one in self.logprobs])


def sample(
    logits: Tensor,
    draws: Sequence[Draw],
    known_tokens: Tensor,
    masks: Tensor | None,
    sampler: Sampler,
) -> Drawn:
    """Draw a token for each row of float32 logits [rows, vocabulary].

    known_tokens int64 [slots, length] holds each slot's tokens, which the penalties count. masks int32
    [masks, ceil(vocabulary / 32)]: bit i of word w allows token 32 w + i.
    """
    tokens, faults = sampler.draw(logits, _columns(draws), known_tokens, masks)
    return Drawn(tokens, faults, _measure_logprobs(logits, draws, tokens, sampler))


def _measure_logprobs(
    logits: Tensor, draws: Sequence[Draw], tokens: Tensor, sampler: Sampler
) -> list[Logprobs]:
    """Return the log-probabilities of the rows that ask for some: at 128k tokens a row costs a millisecond.

    Rows that ask for the same number are measured together, since the number decides which of several equal
    ones `topk` returns.
    """
    places_by_number: dict[int, list[int]] = {}
    for place, draw in enumerate(draws):
        if (number := draw.sampling.num_logprobs) is not None:
            places_by_number.setdefault(number, []).append(place)
    return [
        Logprobs(
            places, sampler.top_logprobs(logits, upload(np.array(places), logits.device), tokens, number)
        )
        for number, places in places_by_number.items()
    ]


def _columns(draws: Sequence[Draw]) -> Draws:
    packed = b"".join([_pack(draw.sampling) for draw in draws])
    places = [(d.slot, d.num_prompt, d.position, NO_MASK if d.mask is None else d.mask) for d in draws]
    return Draws(np.frombuffer(packed, dtype=PARAMETERS), np.array(places, dtype=np.int64))


@lru_cache(maxsize=4096)
def _pack(sampling: Sampling) -> bytes:
    """Return a sequence's parameters as the kernels read them. They are the same at each of its steps."""
    return pack_parameters(
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        seed=sampling.seed,
        frequency=sampling.frequency_penalty,
        presence=sampling.presence_penalty,
    )
