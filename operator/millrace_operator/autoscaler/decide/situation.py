"""One tick's situation: policy, signals, memory and estimate, and the facts that follow from them. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from millrace_operator.api.status_lines import FLAPS_BORNE, SPENT_SECONDS
from millrace_operator.autoscaler.capacity.capacity import Capacity, Demand, find_count, relax_targets
from millrace_operator.autoscaler.capacity.replica import Replica
from millrace_operator.autoscaler.decide.memory import PASSING_PART, Memory
from millrace_operator.autoscaler.decide.policy import OF_ANSWERS, Objective, Policy
from millrace_operator.autoscaler.signals.answers import UNREPORTED
from millrace_operator.autoscaler.signals.observation import Latency, Signals
from millrace_operator.autoscaler.signals.reading import NO_SAMPLES, NO_SERIES

NODE_SECONDS = 900.0
"""A new node comes within this time or never: the Cluster Autoscaler's `--max-node-provision-time`."""
FIRST_SCRAPE_SECONDS = 90.0
"""By default Prometheus scrapes every 60 s, and it takes a while to find a new pod."""
BEYOND_MAXIMUM = 4
"""The search for a load's count goes up to so many times maxReplicas."""
ERRORS_OF_MODEL = 2.0
"""Steps may take longer than the model says by so many standard errors."""
MOST_DOUBT = 0.5
STUCK = 2.0
"""After so many cold starts a replica that is not Ready no longer counts as starting."""
COLD_STARTS_OF_WINDOW = 1.5
FLAP_SECONDS = 600.0
"""A count that rises within this time after a fall had fallen too early."""
FLAPS_REMEMBERED = 10_800.0
"""Seconds."""
DOUBT_SECONDS = 1800.0
"""A probably missed objective holds the count up for at most this time."""
RESTLESS = 3.0
"""After too many flaps a lower count must have been enough for so many times as long as usual."""


@dataclass(frozen=True)
class Estimate:
    """The model's answers about the present load."""

    rate: float | None
    demand: Demand | None
    """The load to plan for."""
    replica: Replica | None = None
    """The model of one replica; None while there is no plan."""
    capacity: Capacity | None = None
    """The load that one of the present replicas carries."""
    infeasible: tuple[str, ...] = ()
    """Objectives that an idle replica misses."""
    violated: tuple[str, ...] = ()
    """Objectives that are missed as measured."""

    @property
    def forecast(self) -> float | None:
        """Requests per second to plan for, with the margin."""
        return self.demand.planned if self.demand else None

    def list_feasible(self, objectives: Iterable[Objective]) -> list[Objective]:
        """Return the objectives that more replicas can meet."""
        return [objective for objective in objectives if objective.name not in self.infeasible]

    @property
    def per_replica(self) -> float | None:
        """Requests per second that one of the present replicas carries."""
        return self.capacity.rate if self.capacity else None


@dataclass(frozen=True)
class Situation:
    """One tick: policy, signals, memory and estimate."""

    policy: Policy
    signals: Signals
    memory: Memory
    estimate: Estimate
    now: float

    @property
    def current(self) -> int:
        """The desired count before this decision."""
        return self.signals.fleet.current

    @property
    def num_starting(self) -> int:
        """Desired replicas that are not Ready yet."""
        return max(self.current - len(self.signals.fleet.ready) - self._count_stuck(), 0)

    @property
    def num_serving(self) -> int:
        """Desired replicas that are Ready or stuck."""
        return self.current - self.num_starting

    @property
    def is_nearly_whole(self) -> bool:
        """Whether nearly all desired replicas serve, and none waits for a node."""
        return self.num_starting <= PASSING_PART * self.current and not self.signals.fleet.unplaced

    @property
    def num_gone(self) -> int:
        """Replicas that are not Ready, without those that were Ready a moment ago."""
        fleet, memory = self.signals.fleet, self.memory
        since = self.now - self.policy.windows.max_age
        missing = (fleet.revisions.keys() - fleet.ready) & memory.started
        passing = sum(memory.unready_since.get(pod, self.now) > since for pod in missing)
        return max(self.num_starting - passing, 0)

    def _count_stuck(self) -> int:
        """Return the number of replicas that are not Ready after twice the time of a cold start."""
        cold_start = self.memory.cold_start_seconds or self.policy.cold_start_seconds
        oldest, fleet = self.now - STUCK * cold_start, self.signals.fleet
        since = self.memory.unready_since
        return sum(since.get(pod, self.now) < oldest for pod in fleet.revisions.keys() - fleet.ready)

    @property
    def room(self) -> int | None:
        """The replicas that the cluster has room for, and one more that waits; None if there is more room.

        Until a node should have come, the decision asks for all wanted replicas, because that many nodes may
        come at once. Without all signals or a proven model the room is the present count. A lower one could
        stay for long, because no signal would ask for more.
        """
        fleet, full_since = self.signals.fleet, self.memory.full_since
        if full_since is None or self.now - full_since < NODE_SECONDS:
            return None
        if not self.is_informed or not self.has_proven_model:
            return self.current
        return len(fleet.revisions) - len(fleet.unplaced) + 1

    @property
    def silent(self) -> frozenset[str]:
        """Replicas without samples that have been Ready for long enough to have some."""
        return self.memory.find_silent(self.signals, self.policy.windows.max_age, self.now)

    @property
    def is_informed(self) -> bool:
        """Whether load, queue and latencies of every replica are known."""
        signals = self.signals
        known = (signals.arrival_rate, signals.waiting, signals.running)
        return None not in known and bool(signals.reporting) and not (self.silent or signals.unanswered)

    @property
    def awaits_first_sample(self) -> bool:
        """Whether no replica has samples, and none has been Ready for long enough to have some."""
        oldest, since = self.now - FIRST_SCRAPE_SECONDS, self.memory.ready_since
        ready, why = self.signals.fleet.ready, self.signals.rejected.values()
        is_young = all(since.get(pod, self.now) > oldest for pod in ready)
        is_answered = all(text.startswith((NO_SERIES, NO_SAMPLES, UNREPORTED)) for text in why)
        return is_young and not self.signals.reporting and (is_answered or not ready)

    @property
    def down_window_seconds(self) -> float:
        """How long a lower count must have been enough before the count falls.

        At least the window of rates, and 1.5 times a cold start. Longer after flaps: the load comes and goes.
        """
        policy, cold_start = self.policy, self.memory.cold_start_seconds or 0.0
        rate = policy.windows.rate + policy.tick_seconds
        window = policy.scale_down_window_seconds * (RESTLESS if len(self.flaps) > FLAPS_BORNE else 1.0)
        return max(window, rate, COLD_STARTS_OF_WINDOW * cold_start)

    @property
    def flaps(self) -> tuple[float, ...]:
        """The times when the count rose soon after it had fallen, within the last hours."""
        return tuple(at for at in self.memory.flaps if self.now - at < FLAPS_REMEMBERED)

    @property
    def missed(self) -> tuple[str, ...]:
        """Objectives that are missed as measured and that more replicas could meet."""
        return tuple(name for name in self.estimate.violated if name not in self.estimate.infeasible)

    @property
    def may_miss(self) -> bool:
        """Whether an objective that more replicas could meet is missed, or probably missed.

        An objective that more replicas have not helped for half an hour does not count.
        """
        failed = {
            name
            for name, each in self.memory.attempts.items()
            if each.have_failed and self.now - each.at >= DOUBT_SECONDS
        }
        doubted = {each.objective.name for each in self.signals.latencies if self._may_miss(each)}
        return bool(doubted - {*self.estimate.infeasible} - failed)

    def _may_miss(self, latency: Latency) -> bool:
        """Whether an objective is missed, or has been probably missed for only a short time.

        If idle replicas are no faster, requests stay in the target's own bucket for good.
        """
        since = self.memory.doubted_since.get(latency.objective.name)
        is_new = since is None or self.now - since < DOUBT_SECONDS
        return latency.is_missed or (latency.may_be_missed and is_new)

    @property
    def has_proven_model(self) -> bool:
        """Whether there is a model that requests have proven."""
        return self.estimate.replica is not None and self.memory.model.is_proven

    @property
    def is_settled(self) -> bool:
        """Whether all present replicas have served for the window of a measured percentile."""
        since = self.memory.settled_since
        return since is not None and self.now - since >= self.policy.windows.latency

    @property
    def present_latencies(self) -> tuple[Latency, ...]:
        """The latencies of requests that came to the present replicas, once these have settled.

        A latency of a whole answer is counted when the answer ends, so it is of an earlier time.
        """
        since, stay = self.memory.settled_since, self.memory.outlook.stay_seconds
        if since is None or not self.is_settled:
            return ()
        is_later = self.now - since >= self.policy.windows.latency + stay
        return tuple(
            each for each in self.signals.latencies if is_later or each.objective.metric not in OF_ANSWERS
        )

    @property
    def spent(self) -> tuple[str, ...]:
        """Objectives whose error budget is spent, so that feedback asks for more replicas."""
        spent, infeasible = self.memory.spent, self.estimate.infeasible
        return tuple(name for name, sum_ in spent.items() if sum_ >= SPENT_SECONDS and name not in infeasible)

    @property
    def in_flight(self) -> float | None:
        """The mean number of sequences that run or wait, or the present number if that is lower.

        With a silent replica the present number is unknown.
        """
        average, running, waiting = self.memory.in_flight, self.signals.running, self.signals.waiting
        if average is None or running is None or waiting is None or self.signals.silent:
            return average
        return min(average, running + waiting)

    @property
    def is_idle(self) -> bool:
        """Whether no request arrives and none is in flight. Unknown is not idle."""
        signals = self.signals
        return signals.arrival_rate == 0 and signals.running == 0 and signals.waiting == 0

    @property
    def demand(self) -> Demand | None:
        """The load to plan for, multiplied by the model's correction."""
        return self.estimate.demand.times(self.memory.correction) if self.estimate.demand else None

    def count_for(self, demand: Demand, *, surely: bool = False) -> int | None:
        """Return how many replicas keep the objectives at a load; None while that is unknown.

        `surely`: even if steps take longer than the model says, by as much as it may err.
        """
        replica = self.estimate.replica
        if replica is None:
            return None
        if surely:
            replica = replace(replica, model=replica.model.slow(self._find_doubt(replica)))
        objectives = relax_targets(replica, self.estimate.list_feasible(self.policy.objectives))
        return find_count(replica, objectives, demand, BEYOND_MAXIMUM * self.policy.max_replicas)

    def _find_doubt(self, replica: Replica) -> float:
        """Return the part by which the steps of the planned batch may take longer."""
        rate = self.estimate.capacity.rate if self.estimate.capacity else 0.0
        batch = max(replica.count_sequences(rate), 1.0)
        return min(ERRORS_OF_MODEL * replica.standard_error(batch), MOST_DOUBT)

    def bound(self, replicas: int) -> int:
        """Return the count within minReplicas and maxReplicas."""
        return min(max(replicas, self.policy.min_replicas), self.policy.max_replicas)
