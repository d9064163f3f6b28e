"""Scores the tokens of prompts: the log-probability and rank of each, and the likely tokens in its place.

The logits of all positions would be gigabytes. So the head computes them by slices, no more rows than a step
may draw, and only the scores stay.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from millrace_kernels.sampling.reference import TopLogprobs
from millrace_kernels.sampling.sampler import Sampler
from millrace_kernels.transfer import download, upload_all
from millrace_runtime.protocol.step import PromptLogprobs, SlotStart


class ScoredRow(NamedTuple):
    """The tokens of one sequence that a step scores: so many from position `first` on."""

    row: int
    """The number of the step's row that has the tokens before them."""
    slot: int
    place: int
    """The number, among the step's tokens, of the token before the first of them."""
    first: int
    num_tokens: int


class Scored(NamedTuple):
    """A step's scored rows that want the same number of likely tokens."""

    number: int
    rows: list[ScoredRow]

    def lay_out(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return, for each scored token, the place of the token before it, its slot, and its position."""
        slots, places, firsts, sizes = (
            np.array(column, dtype=np.int64) for column in list(zip(*self.rows, strict=True))[1:]
        )
        within = np.arange(sizes.sum()) - (sizes.cumsum() - sizes).repeat(sizes)
        return places.repeat(sizes) + within, slots.repeat(sizes), firsts.repeat(sizes) + within


class Unscored(NamedTuple):
    """The tokens of a sequence's prompt that need scores: positions from `begin` to `end`."""

    begin: int
    end: int
    number: int
    """Of likely tokens wanted."""


def find_unscored(start: SlotStart) -> Unscored | None:
    """Return the tokens of a sequence's prompt that need scores; None if none does."""
    number = start.sampling.num_prompt_logprobs
    return None if number is None else Unscored(start.num_scored + 1, start.num_prompt, number)


def choose_scored(spans: Sequence[NDArray[np.int64]], unscored: Sequence[Unscored | None]) -> list[Scored]:
    """Return the prompts' tokens that a step scores: each follows a token of the step.

    `spans` has each row's slot, and the positions where it begins and ends.
    """
    if not any(unscored):
        return []
    by_number: dict[int, list[ScoredRow]] = {}
    start = 0
    for row, (slot, begin, end) in enumerate(zip(*(column.tolist() for column in spans), strict=True)):
        if (wanted := unscored[row]) is not None:
            first = max(begin + 1, wanted.begin)
            num_tokens = min(end + 1, wanted.end) - first
            if num_tokens > 0:
                scored = ScoredRow(row, slot, start + first - 1 - begin, first, num_tokens)
                by_number.setdefault(wanted.number, []).append(scored)
        start += end - begin
    return [Scored(number, rows) for number, rows in by_number.items()]


class Scores(NamedTuple):
    """The scores of one `Scored`, on the device until the download."""

    scored: Scored
    top: TopLogprobs
    ranks: Tensor
    """int64 [tokens]"""

    def download(self) -> "Scores":
        """Return the same on the host. The copies complete when the device reaches them."""
        return Scores(self.scored, TopLogprobs(*map(download, self.top)), download(self.ranks))

    def split(self) -> dict[int, PromptLogprobs | None]:
        """Return the scores by row, after the download; None for a row with a score that is not finite."""
        found: dict[int, PromptLogprobs | None] = {}
        logprobs, ids, values = (part.numpy() for part in self.top)
        begin = 0
        for row, _, _, first, num_tokens in self.scored.rows:
            mine = slice(begin, begin + num_tokens)
            begin += num_tokens
            if not np.isfinite(logprobs[mine]).all():
                found[row] = None
                continue
            found[row] = PromptLogprobs(
                first=first,
                ranks=self.ranks[mine].numpy().astype("<i4").tobytes(),
                logprobs=logprobs[mine].astype("<f4").tobytes(),
                top_tokens=ids[mine].astype("<i4").tobytes(),
                top_logprobs=values[mine].astype("<f4").tobytes(),
            )
        return found


def score_tokens(
    scored: Scored,
    compute_logits: Callable[[Tensor], Tensor],
    known: Tensor,
    sampler: Sampler,
    *,
    max_rows: int,
) -> Scores:
    """Return the scores of a step's tokens.

    `compute_logits` maps places among the step's tokens, at most `max_rows`, to float32 logits [places,
    vocabulary], which are valid until its next call. `known` has each slot's tokens.
    """
    places, slots, positions = upload_all(scored.lay_out(), known.device)
    tokens = known[slots, positions]
    parts = []
    for begin in range(0, len(places), max_rows):
        mine = slice(begin, begin + max_rows)
        parts.append(_score(compute_logits(places[mine]), tokens[mine].clone(), sampler, scored.number))
    return Scores(scored, *_join(parts))


def _score(logits: Tensor, tokens: Tensor, sampler: Sampler, number: int) -> tuple[TopLogprobs, Tensor]:
    rows = torch.arange(len(tokens), device=tokens.device)
    own = logits.gather(1, tokens[:, None])
    return sampler.top_logprobs(logits, rows, tokens, number), (logits > own).sum(dim=1) + 1


def _join(parts: Sequence[tuple[TopLogprobs, Tensor]]) -> tuple[TopLogprobs, Tensor]:
    tops, ranks = zip(*parts, strict=True)
    return TopLogprobs(*map(torch.cat, zip(*tops, strict=True))), torch.cat(ranks)
