"""Draws tokens from logits. A row's draw depends on nothing but its logits, parameters, position and mask."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from millrace_kernels.sampling.columns import PARAMETERS, Sampled, pack_parameters
from millrace_kernels.sampling.logprobs import TopLogprobs
from millrace_kernels.sampling.sampler import Sampler
from millrace_kernels.transfer import download, upload
from millrace_runtime.protocol.sampling import Sampling


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

    sampled: Sampled
    """Of its rows, and perhaps of more that pad. A token with a fault means nothing."""
    logprobs: list[Logprobs]
    """By number wanted; empty where no row asked."""

    def download(self) -> "Drawn":
        """Return the same on the host, where it comes once the device is there."""
        return Drawn(Sampled(download(self.sampled.numbers)), [one.download() for one in self.logprobs])


def measure_logprobs(
    logits: Tensor, wanted: Sequence[int | None], tokens: Tensor, sampler: Sampler
) -> list[Logprobs]:
    """Return the log-probabilities of the rows that want some: at 128k tokens a row costs a millisecond.

    Rows that want the same number are measured together, since the number decides which of several equal
    ones `topk` returns.
    """
    places_by_number: dict[int, list[int]] = {}
    for place, number in enumerate(wanted):
        if number is not None:
            places_by_number.setdefault(number, []).append(place)
    return [
        Logprobs(
            places, sampler.top_logprobs(logits, upload(np.array(places), logits.device), tokens, number)
        )
        for number, places in places_by_number.items()
    ]


def is_plain(sampling: Sampling) -> bool:
    """Return whether a row's draw is neither cut by top_k or top_p nor penalised."""
    is_cut = sampling.temperature > 0 and (sampling.top_k > 0 or sampling.top_p < 1)
    return not (is_cut or sampling.frequency_penalty or sampling.presence_penalty)


def pack(sampling: Sampling) -> NDArray[np.void]:
    """Return a sequence's parameters as the kernels read them: PARAMETERS [1]."""
    packed = pack_parameters(
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        seed=sampling.seed,
        frequency=sampling.frequency_penalty,
        presence=sampling.presence_penalty,
    )
    return np.frombuffer(packed, dtype=PARAMETERS)
