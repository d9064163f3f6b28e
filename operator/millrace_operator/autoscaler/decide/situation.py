"""All that one tick's decision rests on, gathered before anything is decided."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from millrace_operator.api.status_lines import FLAPS_BORNE, SPENT_SECONDS
from millrace_operator.autoscaler.capacity.capacity import Capacity, Demand, ease, find_count
from millrace_operator.autoscaler.capacity.replica import Replica
from millrace_operator.autoscaler.decide.memory import PASSING_PART, Memory
from millrace_operator.autoscaler.decide.policy import OF_ANSWERS, Objective, Policy
from millrace_operator.autoscaler.signals.observation import Latency, Signals
from millrace_operator.autoscaler.signals.reading import NO_SAMPLES, NO_SERIES, UNTOLD

NODE_SECONDS = 900.0
"""In which a node comes, if one comes at all: the Cluster Autoscaler's `--max-node-provision-time`."""
FIRST_SCRAPE_SECONDS = 90.0
"""Pods are scraped every 60 s where nobody chose otherwise, and a new one is found only after a while."""
BEYOND_MAXIMUM = 4
"""Up to how many times maxReplicas is looked for what a load needs."""
ERRORS_OF_MODEL = 2.0
"""Standard errors by which steps may take longer than the model says."""
MOST_DOUBT = 0.5
STUCK = 2.0
"""Cold starts after which a replica that is not Ready is not taken for starting any more."""
COLD_STARTS_OF_WINDOW = 1.5
FLAP_SECONDS = 600.0
"""A count that is raised so soon after it fell fell too early."""
FLAPS_REMEMBERED = 10_800.0
"""Seconds."""
DOUBT_SECONDS = 1800.0
"""For so long a count is held up by an objective that is likely to be missed, and not known to be."""
RESTLESS = 3.0
"""Times as long as usual a lower count must have been enough where there were more flaps."""


@dataclass(frozen=True)
class Estimate:
    """What the model says of the present load."""

    rate: float | None
    demand: Demand | None
    """What is to be planned for."""
    replica: Replica | None = None
    """What one replica does; None while it is not known."""
    capacity: Capacity | None = None
    """What one of the present replicas carries."""
    infeasible: tuple[str, ...] = ()
    """Objectives that an idle replica misses."""
    violated: tuple[str, ...] = ()
    """Objectives missed as measured."""

    @property
    def forecast(self) -> float | None:
        """Requests per second to plan for: as many as may come."""
        return self.demand.planned if self.demand else None

    def list_feasible(self, objectives: Iterable[Objective]) -> list[Objective]:
        """Return those that more replicas can meet."""
        return [objective for objective in objectives if objective.name not in self.infeasible]

    @property
    def per_replica(self) -> float | None:
        """Requests per second that one of the present replicas carries."""
        return self.capacity.rate if self.capacity else None


@dataclass(frozen=True)
class Situation:
    """One tick: what is asked, seen, remembered and estimated."""

    policy: Policy
    signals: Signals
    memory: Memory
    estimate: Estimate
    now: float

    @property
    def current(self) -> int:
        """How many replicas there are to be, before this decision."""
        return self.signals.fleet.current

    @property
    def num_starting(self) -> int:
        """Replicas asked for that are not Ready."""
        return max(self.current - len(self.signals.fleet.ready) - self._count_stuck(), 0)

    @property
    def num_serving(self) -> int:
        """Replicas that are Ready, or will not be."""
        return self.current - self.num_starting

    @property
    def is_nearly_whole(self) -> bool:
        """Whether all replicas asked for serve, but for some of many, and none waits for a node."""
        return self.num_starting <= PASSING_PART * self.current and not self.signals.fleet.unplaced

    @property
    def num_gone(self) -> int:
        """Replicas that are not Ready, but for those that have served and were seen to a moment ago."""
        fleet, memory = self.signals.fleet, self.memory
        since = self.now - self.policy.windows.max_age
        missing = (fleet.revisions.keys() - fleet.ready) & memory.started
        passing = sum(memory.unready_since.get(pod, self.now) > since for pod in missing)
        return max(self.num_starting - passing, 0)

    def _count_stuck(self) -> int:
        """Count the replicas that have not become Ready in twice the time that they take."""
        cold_start = self.memory.cold_start_seconds or self.policy.cold_start_seconds
        oldest, fleet = self.now - STUCK * cold_start, self.signals.fleet
        since = self.memory.unready_since
        return sum(since.get(pod, self.now) < oldest for pod in fleet.revisions.keys() - fleet.ready)

    @property
    def room(self) -> int | None:
        """How many replicas the cluster has room for, and one that asks for more; None where there is more.

        Until a node should have come, all that is wanted is asked for: as many nodes may come at once. Where
        it is not known what is wanted the count stays as it is: nothing would raise it again, and the next
        look may take back what this one asks for.
        """
        fleet, full_since = self.signals.fleet, self.memory.full_since
        if full_since is None or self.now - full_since < NODE_SECONDS:
            return None
        if not self.is_informed or not self.has_proven_model:
            return self.current
        return len(fleet.revisions) - len(fleet.unplaced) + 1

    @property
    def silent(self) -> frozenset[str]:
        """Replicas that don't report, and have been Ready for long enough to have been scraped."""
        return self.memory.find_silent(self.signals, self.policy.windows.max_age, self.now)

    @property
    def is_informed(self) -> bool:
        """Whether load and queue are known, of every replica, and what latencies there are."""
        signals = self.signals
        known = (signals.arrival_rate, signals.waiting, signals.running)
        return None not in known and bool(signals.reporting) and not (self.silent or signals.unanswered)

    @property
    def awaits_first_sample(self) -> bool:
        """Whether no replica reports, and none has been Ready for so long that Prometheus should know it."""
        oldest, since = self.now - FIRST_SCRAPE_SECONDS, self.memory.ready_since
        ready, why = self.signals.fleet.ready, self.signals.rejected.values()
        is_young = all(since.get(pod, self.now) > oldest for pod in ready)
        is_answered = all(text.startswith((NO_SERIES, NO_SAMPLES, UNTOLD)) for text in why)
        return is_young and not self.signals.reporting and (is_answered or not ready)

    @property
    def down_window_seconds(self) -> float:
        """How long a lower count must have been enough before there is one.

        At least what a rate looks back, and half as long again as it would take to get a replica back. Longer
        where the load comes and goes, as was seen by counts that fell too early.
        """
        policy, cold_start = self.policy, self.memory.cold_start_seconds or 0.0
        rate = policy.windows.rate + policy.tick_seconds
        window = policy.scale_down_window_seconds * (RESTLESS if len(self.flaps) > FLAPS_BORNE else 1.0)
        return max(window, rate, COLD_STARTS_OF_WINDOW * cold_start)

    @property
    def flaps(self) -> tuple[float, ...]:
        """When the count was raised soon after it had fallen, as far as that is remembered."""
        return tuple(at for at in self.memory.flaps if self.now - at < FLAPS_REMEMBERED)

    @property
    def missed(self) -> tuple[str, ...]:
        """Objectives missed as measured, but for those that more replicas could not meet."""
        return tuple(name for name in self.estimate.violated if name not in self.estimate.infeasible)

    @property
    def may_miss(self) -> bool:
        """Whether an objective that more replicas could meet is missed, or likely to be.

        One that more replicas have left as late for half an hour is none.
        """
        failed = {
            name
            for name, each in self.memory.attempts.items()
            if each.have_failed and self.now - each.at >= DOUBT_SECONDS
        }
        doubted = {each.objective.name for each in self.signals.latencies if self._may_miss(each)}
        return bool(doubted - {*self.estimate.infeasible} - failed)

    def _may_miss(self, latency: Latency) -> bool:
        """Whether an objective is missed, or has not been likely to be for so long that it says nothing.

        What is in the target's own bucket is there for good where idle replicas are no faster.
        """
        since = self.memory.doubted_since.get(latency.objective.name)
        is_new = since is None or self.now - since < DOUBT_SECONDS
        return latency.is_missed or (latency.may_be_missed and is_new)

    @property
    def has_proven_model(self) -> bool:
        """Whether there is a model, and requests have shown it to be right."""
        return self.estimate.replica is not None and self.memory.model.is_proven

    @property
    def is_settled(self) -> bool:
        """Whether the present replicas have all served for as long as a measured percentile looks back."""
        since = self.memory.settled_since
        return since is not None and self.now - since >= self.policy.windows.latency

    @property
    def present_latencies(self) -> tuple[Latency, ...]:
        """What is measured of requests that came to the present replicas, once they have settled.

        What is known only of a whole answer is counted when it ends, and so speaks of a while before.
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
        """Objectives that have been missed for so long that more replicas are asked for."""
        spent, infeasible = self.memory.spent, self.estimate.infeasible
        return tuple(name for name, sum_ in spent.items() if sum_ >= SPENT_SECONDS and name not in infeasible)

    @property
    def in_flight(self) -> float | None:
        """Sequences that have run or waited for a while: on average, and no more than there are now.

        Of a silent replica it is not known what there is now.
        """
        average, running, waiting = self.memory.in_flight, self.signals.running, self.signals.waiting
        if average is None or running is None or waiting is None or self.signals.silent:
            return average
        return min(average, running + waiting)

    @property
    def is_idle(self) -> bool:
        """Whether nothing arrives and nothing is in flight, as far as known: unknown is not idle."""
        signals = self.signals
        return signals.arrival_rate == 0 and signals.running == 0 and signals.waiting == 0

    @property
    def demand(self) -> Demand | None:
        """What the model is asked for: the load to plan for, corrected by what it promised too much."""
        return self.estimate.demand.times(self.memory.correction) if self.estimate.demand else None

    def count_for(self, demand: Demand, *, surely: bool = False) -> int | None:
        """Return how many replicas keep the objectives at a load; None while that is not known.

        `surely`: also when steps take as much longer than the model says as it may err.
        """
        replica = self.estimate.replica
        if replica is None:
            return None
        if surely:
            replica = replace(replica, model=replica.model.slow(self._find_doubt(replica)))
        objectives = ease(replica, self.estimate.list_feasible(self.policy.objectives))
        return find_count(replica, objectives, demand, BEYOND_MAXIMUM * self.policy.max_replicas)

    def _find_doubt(self, replica: Replica) -> float:
        """Return the part by which the batch that is planned may take longer."""
        rate = self.estimate.capacity.rate if self.estimate.capacity else 0.0
        batch = max(replica.count_sequences(rate), 1.0)
        error = replica.model.standard_error(batch, batch * replica.context_tokens)
        return min(ERRORS_OF_MODEL * error, MOST_DOUBT)

    def bound(self, replicas: int) -> int:
        """The count within min and max."""
        return min(max(replicas, self.policy.min_replicas), self.policy.max_replicas)
