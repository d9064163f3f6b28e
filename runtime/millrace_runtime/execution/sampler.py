"""Draws tokens from logits. A row's draw depends on nothing but its logits, parameters, position and mask."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from torch import Tensor

from millrace_kernels.sampling.columns import NO_MASK, PARAMETERS, Draws, pack_parameters
from millrace_kernels.sampling.native import NativeSampler
from millrace_kernels.sampling.reference import sample_reference
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
    """Log-probabilities of the rows that want the same number of them, still on the device.

    They are the model's own: before penalties and temperature.
    """

    places: list[int]
    """The numbers of these rows."""
    drawn: Tensor
    """float32 [places]: of the drawn tokens"""
    top_tokens: Tensor
    """int64 [places, number]: the most likely ones, from the likeliest on"""
    top: Tensor
    """float32 [places, number]: theirs"""

    def download(self) -> "Logprobs":
        """Return the same on the host, where it comes once the device is there."""
        return Logprobs(self.places, download(self.drawn), download(self.top_tokens), download(self.top))


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
    masks: Tensor | None = None,
    native: NativeSampler | None = None,
) -> Drawn:
    """Draw a token for each row of float32 logits [rows, vocabulary], natively where there is a sampler.

    known_tokens int64 [slots, length] holds each slot's tokens, which the penalties count. masks int32
    [masks, ceil(vocabulary / 32)]: bit i of word w allows token 32 w + i.
    """
    columns = _columns(draws)
    draw = sample_reference if native is None else native.sample
    tokens, faults = draw(logits, columns, known_tokens, masks)
    return Drawn(tokens, faults, _measure_logprobs(logits, draws, tokens))


def _measure_logprobs(logits: Tensor, draws: Sequence[Draw], tokens: Tensor) -> list[Logprobs]:
    """Return the log-probabilities of the rows that ask for some: at 128k tokens a row costs a millisecond.

    Rows that ask for the same number are measured together, since the number decides which of several equal
    ones `topk` returns.
    """
    places_by_number: dict[int, list[int]] = {}
    for place, draw in enumerate(draws):
        if (number := draw.sampling.num_logprobs) is not None:
            places_by_number.setdefault(number, []).append(place)
    return [_top_logprobs(logits, tokens, number, places) for number, places in places_by_number.items()]


def _top_logprobs(logits: Tensor, tokens: Tensor, number: int, places: list[int]) -> Logprobs:
    rows = upload(np.array(places), logits.device)
    logprobs = logits.index_select(0, rows).log_softmax(dim=-1)
    best = logprobs.topk(min(number, logits.shape[1]))
    drawn = logprobs.gather(1, tokens[rows, None])[:, 0]
    return Logprobs(places, drawn, best.indices, best.values)


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
