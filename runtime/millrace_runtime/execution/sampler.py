"""Draws tokens from logits. A row's draw depends only on its logits, parameters, position and mask."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from millrace_kernels.sampling.columns import PARAMETERS, Sampled, pack_parameters
from millrace_kernels.sampling.reference import TopLogprobs
from millrace_kernels.sampling.sampler import Sampler
from millrace_kernels.sampling.state import pack_bias
from millrace_kernels.transfer import download, upload
from millrace_runtime.execution.errors import PlanError
from millrace_runtime.protocol.sampling import MOST_BIASED, Sampling, count_mask_bytes


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


class SlotBias(NamedTuple):
    """A sequence's biases: its own, and those that ban the ids that are held back."""

    entries: NDArray[np.int64]
    """As `pack_bias` returns them. No range names an id twice."""
    ranges: NDArray[np.int64]
    """[2, 2]: where the entries of a draw begin and end, and where while ids are held back."""


def lay_out_bias(sampling: Sampling) -> SlotBias:
    """Return the entries in an order in which both kinds of draws have a range of them.

    They begin with the ids that are held back, and end with the biases of the same ids.
    """
    held = dict.fromkeys(sampling.held_back if sampling.min_tokens > 0 else (), -np.inf)
    free = {token: value for token, value in sampling.bias.items() if token not in held}
    both = {token: value for token, value in sampling.bias.items() if token in held}
    entries = np.concatenate([pack_bias(part) for part in (held, free, both)])
    num_unheld = len(held) + len(free)
    return SlotBias(entries, np.array([(len(held), len(entries)), (0, num_unheld)]))


def check_sampling(sampling: Sampling, vocabulary_size: int) -> None:
    """Raise PlanError for ids or masks that do not fit the tables: the kernels do not check."""
    if max(len(sampling.bias), len(sampling.held_back)) > MOST_BIASED:
        raise PlanError(f"a sequence biases or holds back more than {MOST_BIASED} tokens")
    ids = [*sampling.bias, *sampling.held_back]
    if ids and not 0 <= min(ids) <= max(ids) < vocabulary_size:
        raise PlanError(f"a sequence biases or holds back a token outside 0 … {vocabulary_size - 1}")
    if sampling.allowed is not None and len(sampling.allowed) != count_mask_bytes(vocabulary_size):
        raise PlanError(
            f"a sequence's mask has {len(sampling.allowed)} bytes, not {count_mask_bytes(vocabulary_size)}"
        )


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
        repetition=sampling.repetition_penalty,
        has_fixed_mask=sampling.allowed is not None,
    )
    return np.frombuffer(packed, dtype=PARAMETERS)
