"""One observation of a service: its signals and its replicas. None means unknown, and never zero. Pure."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from millrace_operator.api.status_lines import MIN_LATENCY_SAMPLES
from millrace_operator.autoscaler.decide.policy import Objective
from millrace_operator.autoscaler.signals.lengths import AnswerLengths

ROUNDING = 1e-9
"""The tolerance for a part of the requests, and for seconds."""


@dataclass(frozen=True)
class StepMoments:
    """Means over one replica's steps in a window."""

    pod: str
    seconds: float
    sequences: float
    tokens: float
    """Tokens computed in a step: one a decoding sequence, the guessed ones, and the prefilled ones."""
    context_tokens: float
    """KV tokens read in a step, over all its sequences."""
    num_steps: float
    looked_up: float = 0.0
    """Tokens of the prompts that began with a step, and were looked up in the prefix cache."""
    found: float = 0.0
    """Those of them that the cache had."""
    drafted: float = 0.0
    """Guessed tokens among the computed ones."""
    accepted: float = 0.0
    """Those of them that became a part of an answer."""

    @property
    def prefilled(self) -> float:
        """Tokens of prompts that were computed in a step, nearly: a prompt's row counts as a decoding one."""
        return max(self.tokens - self.sequences - self.drafted, 0.0)


class TrialStep(NamedTuple):
    """A step that a replica tried before its first request."""

    seconds: float
    tokens: float
    """Tokens computed in it."""
    context_tokens: float
    """KV tokens read in it, over all its sequences."""


@dataclass(frozen=True)
class Bracket:
    """The bounds of the target's bucket, and the part of the requests at or under each.

    A histogram knows no more for certain: it does not count where in the bucket a request was.
    """

    lower: float
    """In seconds; 0 under the first bound. Equal to `upper` if the target is a bound."""
    upper: float
    """In seconds; infinite above the last bound."""
    lower_share: float
    """The part of the requests that took `lower` or less."""
    upper_share: float

    @classmethod
    def read(
        cls, counts: Mapping[float, float], total: float, lower: float | None, upper: float
    ) -> "Bracket | None":
        """Return the bracket between two bounds, from the counts at or under each bound.

        `lower` is None for the first bucket. The bracket is None if the counts lack a bound.
        """
        under, over = (0.0 if lower is None else counts.get(lower)), counts.get(upper)
        if under is None or over is None:
            return None
        return cls(lower or 0.0, upper, under / total, over / total)

    def find_missed(self, share: float) -> bool | None:
        """Return whether fewer than this part of the requests met the target; None if that is uncertain."""
        if self.lower_share >= share - ROUNDING:
            return False
        return True if self.upper_share < share - ROUNDING else None

    def agrees(self, seconds: float, share: float) -> bool:
        """Whether the bracket fits the percentile `seconds` of this part, computed from all bounds.

        It does not if some replicas are of a version without these bounds.
        """
        if self.find_missed(share) is None:
            return True
        if self.find_missed(share):
            return seconds >= self.upper * (1 - ROUNDING)
        return seconds <= self.lower * (1 + ROUNDING)

    @property
    def doubt(self) -> str:
        """Why it is uncertain whether a target between the bounds is met, and what to write."""
        if self.upper == math.inf:
            return f"its target is above the last bound of the histogram: choose at most {self.lower:g} s"
        if not self.lower:
            return f"its target is under the first bound of the histogram: choose {self.upper:g} s or more"
        return f"between the bounds {self.lower:g} s and {self.upper:g} s: choose one of them as its target"


@dataclass(frozen=True)
class Latency:
    """An objective's percentile as measured, and from how many requests."""

    objective: Objective
    seconds: float
    """The percentile, with requests spread evenly over their bucket: for people."""
    num_samples: float
    bracket: Bracket | None = None
    """Decides whether the objective is missed; without a bracket `seconds` does."""

    @property
    def has_samples(self) -> bool:
        """Whether there are enough requests: a quantile q needs 3/(1-q) of them."""
        return self.num_samples >= MIN_LATENCY_SAMPLES / (1 - self.objective.percentile / 100)

    @property
    def is_known(self) -> bool:
        """Whether it is certain that the objective is met or missed."""
        return self.is_judged and self._find_missed() is not None

    @property
    def is_judged(self) -> bool:
        """Whether there are enough requests, or far too many late ones among few."""
        return self.has_samples or self.is_flagrant

    @property
    def is_missed(self) -> bool:
        """Whether the objective is missed for certain, by enough requests or by far too many late ones."""
        return self.is_judged and self._find_missed() is True

    @property
    def is_flagrant(self) -> bool:
        """Whether so many requests are late that chance explains it in less than three of a thousand minutes.

        Late requests are about Poisson: with a mean μ, no more than μ + 3·√μ + 3 come by chance.
        """
        if self.bracket is None:
            return False
        usual = (1 - self.objective.percentile / 100) * self.num_samples
        late = (1 - self.bracket.upper_share) * self.num_samples
        return late > usual + 3 * math.sqrt(usual) + 3

    @property
    def may_be_missed(self) -> bool:
        """Whether it is missed, or probably missed: the histogram is uncertain, and its estimate too high."""
        is_likely = self.has_samples and self.seconds > self.objective.target_seconds
        return self.is_missed or (is_likely and not self.is_known)

    @property
    def doubt(self) -> str | None:
        """Why the histogram is uncertain in spite of enough requests; None if it is certain."""
        is_open = self.has_samples and self._find_missed() is None
        return self.bracket.doubt if self.bracket and is_open else None

    def _find_missed(self) -> bool | None:
        if self.bracket is None:
            return self.seconds > self.objective.target_seconds
        return self.bracket.find_missed(self.objective.percentile / 100)


@dataclass(frozen=True)
class Unplaced:
    """A pod without a node."""

    seconds: float
    """Since its creation."""
    words: str
    """The scheduler's message."""


@dataclass(frozen=True)
class Fleet:
    """A service's replicas as the API server has them, without pods that leave."""

    revisions: dict[str, str] = field(default_factory=dict)
    """The revision of each pod, ready or not, by the pod's name."""
    ready: frozenset[str] = frozenset()
    """The pods that are Ready."""
    cold_starts: dict[str, float] = field(default_factory=dict)
    """Seconds from a pod's creation until it was Ready, by pod."""
    unplaced: dict[str, "Unplaced"] = field(default_factory=dict)
    """The pods that the scheduler could not place."""
    desired: int | None = None
    """The desired count in status; None before the first decision."""

    @property
    def is_mixed(self) -> bool:
        """Whether replicas of several revisions serve, as in a rollout."""
        return len({self.revisions[pod] for pod in self.ready}) > 1

    @property
    def current(self) -> int:
        """The desired count, or the number of pods before the first decision."""
        return len(self.revisions) if self.desired is None else self.desired


@dataclass(frozen=True)
class Signals:
    """One observation of a service."""

    fleet: Fleet
    reporting: frozenset[str] = frozenset()
    """The pods with fresh samples."""
    arrivals_per_second: float | None = None
    """Over the long window."""
    recent_arrivals_per_second: float | None = None
    """Over the short window."""
    waiting: float | None = None
    """Requests queued in the replicas with samples, and in gateways until replicas have room, summed. With
    `silent` replicas there are at least so many."""
    running: float | None = None
    """Sequences in batches of the replicas with samples, summed. The same holds for it."""
    in_flight: dict[str, float] = field(default_factory=dict)
    """Requests running or waiting, by pod."""
    kv_usage: float | None = None
    """Mean over the replicas with samples, 0 to 1."""
    prompt_tokens: float | None = None
    """Mean per finished request."""
    generation_tokens: float | None = None
    """Mean per finished request."""
    answer_lengths: AnswerLengths | None = None
    """Of finished requests; queried only if an objective needs them."""
    max_sequences: float | None = None
    """The largest number of sequences in a replica's step."""
    kv_tokens: float | None = None
    """Tokens that a replica's KV cache holds."""
    latencies: tuple[Latency, ...] = ()
    unanswered: frozenset[str] = frozenset()
    """Objectives whose latencies are unknown although there may have been requests."""
    steps: tuple[StepMoments, ...] = ()
    trial_steps: dict[str, tuple[TrialStep, ...]] = field(default_factory=dict)
    """The steps that each Ready replica tried before its first request, by pod."""
    sampled_at: dict[str, float] = field(default_factory=dict)
    """When the newest sample of each replica was taken, in seconds since 1970, old ones too.

    If several sources scrape a replica, always that of the same source while it goes on.
    """
    rejected: dict[str, str] = field(default_factory=dict)
    """The unknown signals, with the reason."""

    @property
    def silent(self) -> frozenset[str]:
        """The pods that are Ready and have no fresh samples."""
        return self.fleet.ready - self.reporting

    @property
    def arrival_rate(self) -> float | None:
        """Requests per second: the larger one of the two windows, or the known one."""
        known = [r for r in (self.arrivals_per_second, self.recent_arrivals_per_second) if r is not None]
        return max(known, default=None)

    @property
    def generated_tokens_per_second(self) -> float | None:
        """Tokens a second that the load of the long window needs, by the mean length of an answer."""
        if self.arrivals_per_second is None or self.generation_tokens is None:
            return None
        return self.arrivals_per_second * self.generation_tokens
