"""What one decision hands to the next. Frozen. A restart brings back what `prior` kept, and then holds."""

import math
from dataclasses import dataclass, field

from millrace_operator.autoscaler.capacity.latency_model import LatencyModel
from millrace_operator.autoscaler.decide.attainment import Calibration
from millrace_operator.autoscaler.decide.attempts import Attempts
from millrace_operator.autoscaler.decide.forecast import Outlook
from millrace_operator.autoscaler.decide.policy import Objective
from millrace_operator.autoscaler.signals.lengths import AnswerLengths
from millrace_operator.autoscaler.signals.observation import Signals
from millrace_operator.autoscaler.signals.scrapes import Cadence

PASSING_PART = 0.1
"""Of the replicas: so many may begin anew, or come or go, while the others are settled."""
KEPT_SECONDS = 3600.0
"""An objective that was kept of late is in reach, whatever the model says: it takes lengths for lognormal."""
COLD_STARTS_KEPT = 20
LONGEST_COLD_START = 3600.0
"""Seconds. A pod that took longer was Ready before, and we have not seen it."""


@dataclass(frozen=True)
class Recommendation:
    """The count that was wanted at a time, before any pacing."""

    at: float
    replicas: int


@dataclass(frozen=True)
class TooFew:
    """A count with which an objective was missed for so long that feedback added a replica."""

    replicas: int
    load: float
    """Requests a second then."""
    at: float


@dataclass(frozen=True)
class Memory:
    """The autoscaler's state for one service. How many replicas there are to be is not in it: status says."""

    model: LatencyModel = field(default_factory=LatencyModel)
    revision: str | None = None
    """The one that the model speaks of."""
    outlook: Outlook = field(default_factory=Outlook)
    recommendations: tuple[Recommendation, ...] = ()
    """Those that no later one reaches, the largest first: the first is the largest of the window."""
    informed_since: float | None = None
    """Since when no signal was missing for long. Scale-down waits until this covers its window."""
    uninformed_since: float | None = None
    """Since when one is missing; None while none is."""
    count: int | None = None
    """How many replicas there were to be when this was looked at last."""
    lowered_at: float | None = None
    """When that was first seen to be fewer."""
    max_replicas: int | None = None
    """The bound at that look."""
    asked: int | None = None
    """The count that the last decision asked for; None where a person's bound or a full cluster decided."""
    fell_at: float | None = None
    """When the count was first seen to be fewer as that decision asked: nobody else lowered it."""
    settled_since: float | None = None
    """Since when the count is what it is, and every replica of it has served."""
    ready_since: dict[str, float] = field(default_factory=dict)
    """Since when each pod that is Ready was seen to be. A container that begins anew is Ready anew."""
    unready_since: dict[str, float] = field(default_factory=dict)
    """Since when each pod that is not Ready was seen not to be, but for moments in which it was."""
    started: frozenset[str] = frozenset()
    """The pods that exist and have been Ready."""
    dark_at: float = -math.inf
    """When this was last seen to have replicas of which none was Ready, though some had been."""
    has_served: bool = False
    """Whether any pod has been Ready since this began."""
    cadence: Cadence = field(default_factory=Cadence)
    learned: dict[str, float] = field(default_factory=dict)
    """When the model learned from each pod last."""
    prompt_tokens: float | None = None
    generation_tokens: float | None = None
    answer_lengths: AnswerLengths | None = None
    """How the lengths of answers vary; None where no objective rests on it."""
    context_tokens: float | None = None
    """Keys that a sequence in a batch reads on average."""
    max_sequences: float | None = None
    kv_tokens: float | None = None
    cold_starts: tuple[float, ...] = ()
    """Seconds from creation until Ready of the pods that started last, as first seen."""
    attempts: dict[str, Attempts] = field(default_factory=dict)
    """What feedback tried, for each objective."""
    too_few: TooFew | None = None
    """The last count that feedback raised."""
    unplaced: frozenset[str] = frozenset()
    """The pods without a node at the last look."""
    full_since: float | None = None
    """Since when there were such pods, and none of them got one. None while there are none."""
    correction: float = 1.0
    """How much more than the load the model is asked for, since it promised too much."""
    flaps: tuple[float, ...] = ()
    """When the count was raised soon after it had fallen, of late."""
    infeasible: tuple[str, ...] = ()
    """Objectives that were out of an idle replica's reach at the last decision."""
    doubted_since: dict[str, float] = field(default_factory=dict)
    """Since when each objective is likely to be missed, and not known to be."""
    kept: dict[Objective, float] = field(default_factory=dict)
    """When each objective was measured as kept last."""
    waiting: float | None = None
    """The queue at the last decision, of all replicas."""
    in_flight: float | None = None
    """Sequences that run or wait, on average over as long as rates look back."""
    spent: dict[str, float] = field(default_factory=dict)
    """Of each objective's error budget beyond what is allowed, in seconds; since the count changed."""
    spent_since: dict[str, float] = field(default_factory=dict)
    """Since when each has been overspent."""
    mean_burn: dict[str, float] = field(default_factory=dict)
    """Its burn since then, on average: of the last minutes, where it is long."""
    looked_at: float | None = None
    passed: float = 0.0
    """Seconds from the look before to the last one."""
    calibration: Calibration = field(default_factory=Calibration)
    """By how much predictions of the part in time were off."""

    @property
    def cold_start_seconds(self) -> float | None:
        """Return what nine of ten cold starts take at most, None before the first."""
        seconds = sorted(self.cold_starts)
        return seconds[math.ceil(0.9 * len(seconds)) - 1] if seconds else None

    def find_silent(self, signals: Signals, max_age: float, now: float) -> frozenset[str]:
        """Return the replicas that don't report, and have been Ready for long enough to have been scraped."""
        return frozenset(pod for pod in signals.silent if self.ready_since.get(pod, now) <= now - max_age)
