"""How sequences share a step's room for drafts, and the counts of drafted and accepted tokens."""

from collections.abc import Sequence
from dataclasses import dataclass

from millrace_runtime.engine.planned_step import PlannedStep
from millrace_runtime.engine.residency import Residency
from millrace_runtime.protocol.messages import SequenceOutput
from millrace_runtime.protocol.step import Row, RowResult


def add_drafts(planned: PlannedStep, residency: Residency, max_draws: int) -> None:
    """Let rows verify the executor's drafts, as far as tokens, draws and blocks remain."""
    offers = [min(len(one.next_draft), one.max_length - one.num_known) for _, one in planned.offers]
    shares = share_drafts(offers, min(planned.num_tokens_left, max_draws - planned.num_draws))
    for (number, sequence), wanted in zip(planned.offers, shares, strict=True):
        num_known = sequence.num_known - 1  # without the token that this row draws
        num_guesses = residency.extend(sequence, num_known + wanted) - num_known
        if num_guesses > 0:
            planned.add_draft(number, sequence.next_draft[:num_guesses])


def share_drafts(offers: Sequence[int], room: int) -> list[int]:
    """Return how many tokens of each offered draft a step verifies, at most `room` of all.

    A token counts more the earlier it is in its draft, because it is right only if all before it are. So each
    draft gets its first token before another one gets its second.
    """
    shares = [0] * len(offers)
    for level in range(max(offers, default=0)):
        for number, offer in enumerate(offers):
            if room > 0 and offer > level:
                shares[number] += 1
                room -= 1
    return shares


@dataclass(slots=True)
class DraftCounts:
    """Drafts since the start."""

    num_drafts: int = 0
    """Those of forced tokens count too, all right: the autoscaler learns here how much a step writes."""
    num_drafted: int = 0
    """Their tokens."""
    num_accepted: int = 0
    """Those of them that became a part of a text."""

    def count(self, row: Row, result: RowResult, output: SequenceOutput | None) -> None:
        """Count a verified draft, with what its sequence got from it."""
        num_right = len(result.tokens) - (result.fault is None)
        self.num_drafts += 1
        self.num_drafted += len(row.draft)
        self.num_accepted += min(num_right, 0 if output is None else len(output.tokens))

    def count_forced(self, num_tokens: int) -> None:
        """Count forced tokens that a row has brought. Those that end a text are not computed."""
        self.num_drafts += 1
        self.num_drafted += num_tokens
        self.num_accepted += num_tokens
