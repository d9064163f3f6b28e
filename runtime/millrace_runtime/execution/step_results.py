"""Reads the results of a step that has run: tokens, faults, log-probabilities and scores of each row."""

from collections.abc import Sequence

import msgspec

from millrace_kernels.sampling.columns import NO_FAULT, NOT_FINITE, NOTHING_ALLOWED
from millrace_runtime.execution.applied_plan import AppliedPlan
from millrace_runtime.execution.sampler import Drawn
from millrace_runtime.execution.scoring import Scores
from millrace_runtime.execution.speculation.verification import Outcome
from millrace_runtime.protocol.step import FAULT_NOTHING_ALLOWED, RowResult, TokenLogprobs

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
