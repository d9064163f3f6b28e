"""The autoscaler's state from one decision to the next. Frozen. After a restart `prior` restores a part of
it.
"""

import math
from dataclasses import dataclass, field

from millrace_operator.autoscaler.capacity.latency_model import LatencyModel
from millrace_operator.autoscaler.decide.attainment import Calibration
from millrace_operator.autoscaler.decide.attempts import Attempts
from millrace_operator.autoscaler.decide.forecast import Outlook
from millrace_operator.autoscaler.decide.policy import Objective
from millrace_operator.autoscaler.signals.lengths import AnswerLengths
from millrace_operator.autoscaler.signals.observation import Signals
from millrace_operator.autoscaler.signals.savings import Drafts, PrefixHits
from millrace_operator.autoscaler.signals.scrapes import Cadence

PASSING_PART = 0.1
"""This part of the replicas may restart, come or go while the others count as settled."""
KEPT_SECONDS = 3600.0
"""An objective that was kept so recently is in reach, even if the model with lognormal lengths denies it."""
COLD_STARTS_KEPT = 20
LONGEST_COLD_START = 3600.0
"""Seconds. A pod with a longer one was Ready before, and the operator did not see it."""


@dataclass(frozen=True)
class Recommendation:
    """The wanted count at a time, before any pacing."""

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
    """The autoscaler's state for one service. It does not contain the desired count: status does.

    Times are those of the clock that `decide` gets. A "look" is one call of `decide`.
    """

    model: LatencyModel = field(default_factory=LatencyModel)
    revision: str | None = None
    """The revision of the model's replicas."""
    outlook: Outlook = field(default_factory=Outlook)
    recommendations: tuple[Recommendation, ...] = ()
    """Those that no later one reaches, the largest first: the first is the largest of the window."""
    informed_since: float | None = None
    """Since when no signal was missing for long. Scale-down waits until this covers its window."""
    uninformed_since: float | None = None
    """Since when a signal is missing; None while none is."""
    count: int | None = None
    """The desired count at the last look."""
    lowered_at: float | None = None
    """When a look first found a lower desired count."""
    max_replicas: int | None = None
    """The bound at the last look."""
    asked: int | None = None
    """The count that the last decision asked for; None if a person's bound or a full cluster decided."""
    fell_at: float | None = None
    """When a look first found the lower count that the last decision had asked for."""
    settled_since: float | None = None
    """Since when the count is the present one and all its replicas have served."""
    ready_since: dict[str, float] = field(default_factory=dict)
    """Since when each Ready pod is Ready. A restarted container counts from its restart."""
    unready_since: dict[str, float] = field(default_factory=dict)
    """When each pod became not Ready. A pod that crashes soon after it was Ready keeps its old time."""
    started: frozenset[str] = frozenset()
    """The pods that exist and have been Ready."""
    dark_at: float = -math.inf
    """The last look at which no replica was Ready, though some had been before."""
    has_served: bool = False
    """Whether any pod has been Ready so far."""
    cadence: Cadence = field(default_factory=Cadence)
    learned: dict[str, float] = field(default_factory=dict)
    """The last time when the model learned from each pod."""
    prompt_tokens: float | None = None
    generation_tokens: float | None = None
    answer_lengths: AnswerLengths | None = None
    """The distribution of the answers' lengths; None if no objective needs it."""
    context_tokens: float | None = None
    """Keys that a sequence in a batch reads on average."""
    prefix_hits: PrefixHits | None = None
    """Of warm replicas; None until one has computed a prompt."""
    drafts: Drafts | None = None
    """Of warm replicas; None until one has computed a step."""
    max_sequences: float | None = None
    kv_tokens: float | None = None
    cold_starts: tuple[float, ...] = ()
    """Seconds from creation until Ready of the last pods that started, as first seen."""
    attempts: dict[str, Attempts] = field(default_factory=dict)
    """The attempts of feedback for each objective."""
    too_few: TooFew | None = None
    """The last count that feedback raised."""
    unplaced: frozenset[str] = frozenset()
    """The pods without a node at the last look."""
    full_since: float | None = None
    """Since when there are such pods and none of them has got a node. None while there are none."""
    correction: float = 1.0
    """The factor of the load in the questions to the model, because it promised too much."""
    flaps: tuple[float, ...] = ()
    """The recent times when the count rose soon after it had fallen."""
    infeasible: tuple[str, ...] = ()
    """Objectives that were out of an idle replica's reach at the last decision."""
    doubted_since: dict[str, float] = field(default_factory=dict)
    """Since when each objective is probably missed, without certainty."""
    kept: dict[Objective, float] = field(default_factory=dict)
    """The last time when each objective was measured as kept."""
    waiting: float | None = None
    """The queue at the last decision, of all replicas."""
    in_flight: float | None = None
    """The mean number of sequences that run or wait, over the window of rates."""
    spent: dict[str, float] = field(default_factory=dict)
    """Each objective's burn beyond the allowed one, added up in seconds since the count changed."""
    spent_since: dict[str, float] = field(default_factory=dict)
    """Since when each sum is above zero."""
    mean_burn: dict[str, float] = field(default_factory=dict)
    """Each mean burn since then, or of its last minutes."""
    looked_at: float | None = None
    passed: float = 0.0
    """Seconds between the last two looks."""
    calibration: Calibration = field(default_factory=Calibration)
    """The error of predictions of the part in time."""

    @property
    def cold_start_seconds(self) -> float | None:
        """The longest of nine in ten cold starts; None before the first."""
        seconds = sorted(self.cold_starts)
        return seconds[math.ceil(0.9 * len(seconds)) - 1] if seconds else None

    def find_silent(self, signals: Signals, max_age: float, now: float) -> frozenset[str]:
        """Return the replicas without samples that have been Ready for long enough to have some."""
        return frozenset(pod for pod in signals.silent if self.ready_since.get(pod, now) <= now - max_age)
