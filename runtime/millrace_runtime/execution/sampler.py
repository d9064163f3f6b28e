"""Draws tokens from logits. A row's draw depends only on its logits, parameters, position and mask."""

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
    """Log-probabilities of rows that want the same number of them, on the device until the download."""

    places: list[int]
    """The numbers of these rows."""
    top: TopLogprobs

    def download(self) -> "Logprobs":
        """Return the same on the host. The copy completes when the device reaches it."""
        return Logprobs(self.places, TopLogprobs(*map(download, self.top)))


@dataclass(frozen=True, slots=True)
class Drawn:
    """A step's draws, on the device until the download."""

    sampled: Sampled
    """The draws of its rows, and possibly of padding rows. A token with a fault is meaningless."""
    logprobs: list[Logprobs]
    """By the wanted number; empty if no row wants any."""

    def download(self) -> "Drawn":
        """Return the same on the host. The copy completes when the device reaches it."""
        return Drawn(Sampled(download(self.sampled.numbers)), [one.download() for one in self.logprobs])


def measure_logprobs(
    logits: Tensor, wanted: Sequence[int | None], tokens: Tensor, sampler: Sampler
) -> list[Logprobs]:
    """Return the log-probabilities of the rows that want some: at 128k tokens a row costs a millisecond.

    Rows that want the same number are computed together, because the number decides which of several equal
    values `topk` returns.
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
    """Whether a row's draw has neither top_k nor top_p nor penalties."""
    is_cut = sampling.temperature > 0 and (sampling.top_k > 0 or sampling.top_p < 1)
    return not (is_cut or sampling.frequency_penalty or sampling.presence_penalty)


def pack(sampling: Sampling) -> NDArray[np.void]:
    """Return a sequence's parameters in the kernels' format: PARAMETERS [1]."""
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
