"""A simulation: a load, replicas and scrapes in virtual time, and a scaler that decides by its signals.

Two scalers are here: our autoscaler, and a count that never changes. `policies/` has other rules.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import NamedTuple, Protocol

from millrace_operator.autoscaler.decide.decide import decide
from millrace_operator.autoscaler.decide.decision import Decision
from millrace_operator.autoscaler.decide.memory import Memory
from millrace_operator.autoscaler.decide.policy import Objective, Policy
from millrace_operator.autoscaler.signals.observation import Signals
from millrace_operator.autoscaler.signals.scrapes import DEFAULT_WINDOWS, Windows, fit_windows
from millrace_operator.autoscaler.simulate.agenda import Agenda
from millrace_operator.autoscaler.simulate.engine import Answer
from millrace_operator.autoscaler.simulate.hardware import Hardware
from millrace_operator.autoscaler.simulate.load import Request
from millrace_operator.autoscaler.simulate.prometheus import Prometheus, Scraping
from millrace_operator.autoscaler.simulate.service import DRAIN_SECONDS, Service


class Choice(NamedTuple):
    """The replicas that a scaler wants, and why."""

    replicas: int
    why: str


class Scaler(Protocol):
    """Decides how many replicas there are."""

    @property
    def tick_seconds(self) -> float:
        """The time between two decisions."""

    @property
    def windows(self) -> Windows:
        """The windows of its signals at the next tick."""

    def choose(self, signals: Signals, now: float) -> Choice:
        """Return the count from now on."""


@dataclass(frozen=True)
class Setting:
    """The setting of a run, without load and scaler."""

    hardware: Hardware
    objectives: tuple[Objective, ...]
    scraping: Scraping = field(default_factory=Scraping)
    initial_replicas: int = 1
    seed: int = 1
    capacity: int | None = None
    """Pods that the cluster has room for; others stay Pending. None: all."""
    drain_seconds: float = DRAIN_SECONDS
    """A draining replica is killed after so long, with its unfinished requests."""
    crashes_at: tuple[float, ...] = ()
    """The times at which the busiest pod is lost, and another one created."""
    restarts_at: tuple[float, ...] = ()
    """The times at which the busiest pod's container restarts."""
    prefixes_lost_at: float | None = None
    """From when prompts begin unlike all earlier ones, so that no prefix cache has them."""
    rollout_at: float | None = None
    """The beginning of a rollout that replaces all pods one by one."""
    next_hardware: Hardware | None = None
    """The hardware of the pods that replace them. None: the same."""

    def __post_init__(self) -> None:
        if self.capacity is not None and self.capacity < self.initial_replicas:
            raise ValueError(
                f"capacity is {self.capacity}; write {self.initial_replicas} (initial_replicas) or more"
            )
        if self.next_hardware is not None and self.rollout_at is None:
            raise ValueError("next_hardware has no rollout; write rollout_at, in seconds")


class Moment(NamedTuple):
    """One tick."""

    at: float
    choice: Choice
    signals: Signals
    num_ready: int
    pod_seconds: float
    """Of all pods until then."""


@dataclass
class Run:
    """The result of a simulation."""

    answers: list[Answer] = field(default_factory=list)
    moments: list[Moment] = field(default_factory=list)
    num_arrived: int = 0
    num_refused: int = 0
    """Requests that came while no replica was ready."""
    num_killed: int = 0
    """Requests that ended with their replica, unanswered."""
    pod_seconds: float = 0.0
    seconds: float = 0.0

    @property
    def average_replicas(self) -> float:
        """The mean number of pods, with those that start or drain."""
        return self.pod_seconds / self.seconds

    def attainment(self, objectives: Sequence[Objective]) -> float:
        """Return the share of requests that met every objective's target.

        Requests without an answer did not: refused, killed, or not finished in time.
        """
        met = sum(all(is_within(answer, objective) for objective in objectives) for answer in self.answers)
        return met / self.num_arrived if self.num_arrived else 1.0

    def count_reversals(self, within_seconds: float = 600.0) -> int:
        """Return how often the count reversed within some seconds."""
        return sum(
            one.step * other.step < 0 and other.at - one.at <= within_seconds
            for one, other in pairwise(self._changes())
        )

    def _changes(self) -> Iterator["_Change"]:
        for one, other in pairwise(self.moments):
            if one.choice.replicas != other.choice.replicas:
                yield _Change(other.at, other.choice.replicas - one.choice.replicas)


class _Change(NamedTuple):
    """The count went up or down."""

    at: float
    step: int


def is_within(answer: Answer, objective: Objective) -> bool:
    """Whether an answer met an objective's target, or has no such latency."""
    latency = answer.find_latency(objective.metric)
    return latency is None or latency <= objective.target_seconds


def simulate(setting: Setting, scaler: Scaler, load: Iterable[Request], seconds: float) -> Run:
    """Return the run of a load over some seconds; started requests may end afterwards."""
    run, agenda = Run(), Agenda()
    service = Service(
        agenda,
        setting.hardware,
        setting.seed,
        run.answers.append,
        capacity=setting.capacity,
        drain_seconds=setting.drain_seconds,
    )
    service.start(setting.initial_replicas)
    longest = max(scaler.windows.rate, scaler.windows.latency)
    prometheus = Prometheus(agenda, service, setting.scraping, setting.seed + 1, longest)
    requests, coming = iter(load), deque[Request]()

    def arrive() -> None:
        service.submit(coming.popleft())
        await_next()

    def await_next() -> None:
        if (request := next(requests, None)) is not None and request.at < seconds:
            coming.append(request)
            agenda.add(request.at, arrive)

    def tick() -> None:
        signals = prometheus.observe(setting.objectives, scaler.windows)
        choice = scaler.choose(signals, agenda.now)
        service.settle()
        run.moments.append(Moment(agenda.now, choice, signals, len(service.ready), service.pod_seconds))
        service.scale(choice.replicas)
        if agenda.now + scaler.tick_seconds < seconds:
            agenda.add(agenda.now + scaler.tick_seconds, tick)

    await_next()
    agenda.add(scaler.tick_seconds, tick)
    _add_mishaps(agenda, service, setting)
    agenda.run_until(seconds)
    service.settle()
    run.num_arrived, run.num_refused = service.num_arrived, service.num_refused
    run.pod_seconds, run.seconds = service.pod_seconds, seconds
    agenda.run_until(seconds + DRAIN_SECONDS)
    run.num_killed = service.num_killed
    return run


def _add_mishaps(agenda: Agenda, service: Service, setting: Setting) -> None:
    for at in setting.crashes_at:
        agenda.add(at, service.crash)
    for at in setting.restarts_at:
        agenda.add(at, service.restart)
    if setting.prefixes_lost_at is not None:
        agenda.add(setting.prefixes_lost_at, service.lose_prefixes)
    if setting.rollout_at is not None:
        hardware = setting.next_hardware or setting.hardware
        agenda.add(setting.rollout_at, lambda: service.roll_out(hardware))


class Ours:
    """Our autoscaler: the same `decide` as the operator's, with the same policy."""

    def __init__(self, policy: Policy) -> None:
        self.tick_seconds = policy.tick_seconds
        self.policy = policy
        self.memory = Memory()
        self.decision: Decision | None = None

    @property
    def windows(self) -> Windows:
        """The windows for the scrape interval of the replicas."""
        return fit_windows(self.memory.cadence.interval_seconds)

    def choose(self, signals: Signals, now: float) -> Choice:
        """Return the count of `decide`, and keep its decision and memory."""
        policy = replace(self.policy, windows=self.windows)
        self.decision, self.memory = decide(policy, signals, self.memory, now)
        return Choice(self.decision.desired, self.decision.message)


@dataclass(frozen=True)
class Static:
    """The same number of replicas at any time."""

    replicas: int
    tick_seconds: float = 15.0
    windows: Windows = DEFAULT_WINDOWS

    def choose(self, signals: Signals, now: float) -> Choice:
        """Return the same count."""
        del signals, now
        return Choice(self.replicas, "static")


@dataclass(frozen=True)
class Watched:
    """A scaler that reports the time of each decision."""

    scaler: Scaler
    on_tick: Callable[[float], None]

    @property
    def tick_seconds(self) -> float:
        """The time between two decisions."""
        return self.scaler.tick_seconds

    @property
    def windows(self) -> Windows:
        """The windows of its signals at the next tick."""
        return self.scaler.windows

    def choose(self, signals: Signals, now: float) -> Choice:
        """Return the count from now on."""
        self.on_tick(now)
        return self.scaler.choose(signals, now)
