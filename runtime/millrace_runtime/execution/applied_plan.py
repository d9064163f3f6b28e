"""A plan as the device computes it: positions and draws; and the rows' results, once the step has run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from millrace_kernels.sampling.columns import NO_FAULT, NOT_FINITE, NOTHING_ALLOWED, Draws
from millrace_runtime.execution.sampler import Drawn
from millrace_runtime.execution.scoring import Scored, Scores
from millrace_runtime.execution.speculation.verification import Outcome, verify
from millrace_runtime.protocol.step import FAULT_NOTHING_ALLOWED, RowResult, TokenLogprobs


class Spans(NamedTuple):
    """Each row's tokens: positions `begins` to `ends` of the sequences in `slots`. int64 [rows] each."""

    slots: NDArray[np.int64]
    begins: NDArray[np.int64]
    ends: NDArray[np.int64]


_NO_OUTCOME = Outcome([])


@dataclass(frozen=True, slots=True)
class AppliedPlan:
    """A plan's rows as positions and draws."""

    step: int
    spans: Spans
    """By row, with the tokens of its draft."""
    epochs: list[int]
    """By row."""
    emits: list[int]
    """Numbers of the rows that draw."""
    drafts: list[tuple[int, ...]]
    """The draft of each of these rows; empty if no row has one."""
    draws: Draws
    """The parameters of each draw: one of each row of `emits`, and one after each token of its draft."""
    places: NDArray[np.int64] | None
    """[draws]: the number of the token before each draw among the step's tokens. None without drafts: each
    draw follows its row's last token."""
    scored: list[Scored]
    """The tokens of prompts to score, by the wanted number of likely ones."""
    num_logprobs: list[int | None]
    """The wanted number of log-probabilities of each draw."""
    is_masked: bool
    """Whether any draw has a mask."""

    @property
    def num_draws(self) -> int:
        """Draws of all rows."""
        return len(self.num_logprobs)

    @property
    def early_draws(self) -> Draws | None:
        """The draws, if every row draws and none waits for a mask: they are then known before the step."""
        is_early = len(self.emits) == len(self.epochs) and not self.is_masked
        return self.draws if is_early else None

    def answer(self, tokens: Sequence[int], outcomes: Mapping[int, Outcome]) -> list[RowResult]:
        """Return each row's result, from the token of each draw, and some outcomes by the draw's number."""
        if self.drafts:
            return self._answer_drafts(tokens, outcomes)
        drawn: list[list[int]] = [[]] * len(self.epochs)
        beside = [_NO_OUTCOME] * len(self.epochs)
        for number, token in zip(self.emits, tokens, strict=True):
            drawn[number] = [token]
        for place, outcome in outcomes.items():
            number = self.emits[place]
            beside[number] = outcome
            if outcome.fault is not None:
                drawn[number] = []
        slots, ends = self.spans.slots.tolist(), self.spans.ends.tolist()
        return [
            RowResult(slot, epoch, mine, end, logprobs=logprobs, fault=fault)
            for slot, epoch, mine, end, (logprobs, fault) in zip(
                slots, self.epochs, drawn, ends, beside, strict=True
            )
        ]

    def _answer_drafts(self, tokens: Sequence[int], outcomes: Mapping[int, Outcome]) -> list[RowResult]:
        slots, ends = self.spans.slots.tolist(), self.spans.ends.tolist()
        results = [
            RowResult(slot, epoch, [], end) for slot, epoch, end in zip(slots, self.epochs, ends, strict=True)
        ]
        bounds = pairwise(accumulate((len(draft) + 1 for draft in self.drafts), initial=0))
        for number, draft, (begin, end) in zip(self.emits, self.drafts, bounds, strict=True):
            beside = [outcomes.get(place, _NO_OUTCOME) for place in range(begin, end)]
            kept, logprobs, fault = verify(draft, tokens[begin:end], beside)
            num_accepted = len(kept) - (fault is None)
            results[number] = RowResult(
                slots[number],
                self.epochs[number],
                kept,
                ends[number] - len(draft) + num_accepted,
                logprobs=logprobs,
                fault=fault,
            )
        return results


FAULTS = {
    NOT_FINITE: "the model's logits are not finite (NaN or infinity)",
    NOTHING_ALLOWED: FAULT_NOTHING_ALLOWED,
}


def read_rows(applied: AppliedPlan, drawn: Drawn | None) -> list[RowResult]:
    """Return each row's result, without scores. `drawn` is on the host; None if the step draws nothing."""
    if drawn is None:
        return applied.answer([], {})
    tokens, faults = drawn.sampled.numbers[:, : applied.num_draws].tolist()
    outcomes = _read_logprobs(drawn)
    for place, fault in enumerate(faults):
        if fault != NO_FAULT:
            outcomes[place] = Outcome([], FAULTS[fault])
    return applied.answer(tokens, outcomes)


def add_scores(rows: list[RowResult], scores: Sequence[Scores]) -> None:
    """Add the scores of prompts to their rows. Scores that are not finite are the row's fault."""
    for one in scores:
        for number, mine in one.split().items():
            if mine is not None:
                rows[number] = msgspec.structs.replace(rows[number], prompt_logprobs=mine)
            else:
                broken = {"tokens": [], "logprobs": [], "fault": FAULTS[NOT_FINITE]}
                rows[number] = msgspec.structs.replace(rows[number], **broken)


def _read_logprobs(drawn: Drawn) -> dict[int, Outcome]:
    """Return the log-probabilities by place, of the rows that want them."""
    return {
        place: Outcome([TokenLogprobs(*values)])
        for group in drawn.logprobs
        for place, *values in zip(group.places, *(part.tolist() for part in group.top), strict=True)
    }
