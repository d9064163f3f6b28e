"""The work that replicas are spared: prompts that their prefix cache has, and steps that drafts save. Pure.

Both are seen in what the replicas have counted, and both can end from one minute to the next. So a loss
counts at once, and a gain as slowly as the lengths of requests. A plan counts no work as spared without
counters that show it.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from millrace_operator.autoscaler.signals.observation import StepMoments

REQUESTS_AVERAGED = 200.0
"""Lengths and savings are averaged over so many requests. A minute with few requests says little of them."""
LENGTHS_VARY = math.e
"""Shares are of tokens, so a few long prompts decide: of lognormal lengths with a spread of 1, n count as few
as n/e equal ones."""
DOUBTED = 2.0
"""A plan uses the share that is this many standard errors below the measured one."""
LOST = 3.0
"""The cache has lost its use if a window's share is so many standard errors below the known one."""
HALVED = 2.0


@dataclass(frozen=True)
class PrefixHits:
    """The part of the prompts' tokens that replicas found in their prefix caches."""

    share: float
    requests: float
    """The number of requests behind it."""

    @property
    def certain_share(self) -> float:
        """The part to plan with."""
        return self.find_bound(-DOUBTED)

    def add(self, seen: "PrefixHits", new_requests: float) -> "PrefixHits":
        """Return the average with a window's hits, of which `new_requests` are new.

        If the window's share is smaller beyond chance, the earlier hits are forgotten at once.
        """
        if seen.find_bound(LOST) < self.share:
            return seen
        requests = self.requests + new_requests
        new = new_requests / requests if requests else 0.0
        most = max(REQUESTS_AVERAGED, seen.requests)
        return PrefixHits(self.share + new * (seen.share - self.share), min(requests, most))

    def find_bound(self, errors: float) -> float:
        """Return Wilson's bound, with so many standard errors.

        A request may be found as a whole or not at all: no shares of single requests vary more.
        """
        number = self.requests / LENGTHS_VARY
        if number <= 0:
            return 0.0 if errors < 0 else 1.0
        square = errors * errors / number
        error = math.sqrt(self.share * (1 - self.share) / number + square / (4 * number))
        return min(max((self.share + square / 2 + errors * error) / (1 + square), 0.0), 1.0)


def read_hits(steps: Iterable[StepMoments], prompt_tokens: float | None) -> PrefixHits | None:
    """Return the hits of some replicas in a window; None if they computed no prompt.

    `prompt_tokens` is the mean of a prompt. A replica that looks nothing up, as one of an earlier version,
    has computed its prompts, and found nothing.
    """
    found = looked_up = 0.0
    for step in steps:
        found += step.found * step.num_steps
        looked_up += max(step.looked_up, step.prefilled, step.found) * step.num_steps
    if looked_up <= 0 or not prompt_tokens:
        return None
    return PrefixHits(found / looked_up, looked_up / prompt_tokens)


@dataclass(frozen=True)
class Drafts:
    """What replicas guessed in a mean step, and what came true. Without speculation both are zero.

    The engine drafts less as a step has more sequences. So a larger batch than the seen one counts with as
    many guesses a step, and not with as many a sequence. Tokens that a grammar forces count as guesses too.
    They grow with the sequences, so of them a larger batch has more than is planned with.
    """

    sequences: float = 1.0
    """In a mean step."""
    drafted: float = 0.0
    """Tokens that were guessed, and computed, in a mean step."""
    accepted: float = 0.0
    """Those of them that came true."""

    def written_per_step(self, batch: float) -> float:
        """Return the tokens of an answer that a step of so many sequences yields for each."""
        return 1 + self.accepted / max(batch, self.sequences)

    def computed_per_step(self, batch: float) -> float:
        """Return the tokens that a step of so many sequences computes for each."""
        return 1 + self.drafted / max(batch, self.sequences)

    def add(self, seen: "Drafts", new: float) -> "Drafts":
        """Return the average with a window's drafts, whose part `new` is new.

        If half as many come true as before, the earlier ones are forgotten at once.
        """
        if HALVED * (seen.written_per_step(1.0) - 1) < self.written_per_step(1.0) - 1:
            return seen
        return Drafts(
            self.sequences + new * (seen.sequences - self.sequences),
            self.drafted + new * (seen.drafted - self.drafted),
            self.accepted + new * (seen.accepted - self.accepted),
        )


NO_DRAFTS = Drafts()


def read_drafts(steps: Iterable[StepMoments]) -> Drafts | None:
    """Return the drafts of some replicas in a window; None without steps."""
    found = [(step, step.num_steps) for step in steps if step.num_steps > 0 and step.sequences > 0]
    total = sum(number for _, number in found)
    if total <= 0:
        return None
    return Drafts(
        sum(step.sequences * number for step, number in found) / total,
        sum(step.drafted * number for step, number in found) / total,
        sum(step.accepted * number for step, number in found) / total,
    )
