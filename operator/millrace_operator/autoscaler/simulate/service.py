"""A service's replicas in virtual time: created, ready after a cold start, used by a gateway, drained.

Methods cause mishaps: a lost pod, a container that restarts. A rollout replaces all pods by pods of other
hardware, with the same counts as the operator's surge.
"""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter

from millrace_operator.autoscaler.simulate.agenda import Agenda
from millrace_operator.autoscaler.simulate.engine import Answer, Engine
from millrace_operator.autoscaler.simulate.hardware import Hardware, Node, Nodes
from millrace_operator.autoscaler.simulate.load import Request
from millrace_runtime.contract import SLOW_START_SECONDS

DRAIN_SECONDS = 600.0
"""The time of a draining replica for its requests (`millrace serve --drain-seconds`)."""
LEAST_SHARE = 0.01
"""A new pod begins with this part of a full share."""
_count_in_flight = attrgetter("engine.num_in_flight")


def _ignore() -> None:
    pass


@dataclass(slots=True, eq=False)
class Pod:
    """One replica's pod."""

    name: str
    created_at: float
    hardware: Hardware
    revision: str
    engine: Engine
    node: Node | None = None
    """None while the cluster has no room: the pod is Pending."""
    ready_at: float | None = None
    is_draining: bool = False


class Service:
    """The pods of one service behind a gateway that chooses the one with the fewest requests in flight.

    A new pod begins with a small share, as in the gateway's `route/balance.py`. Pods with equally few
    requests take turns. Of several equally idle pods the youngest leaves first.
    """

    def __init__(
        self,
        agenda: Agenda,
        hardware: Hardware,
        seed: int,
        on_answer: Callable[[Answer], None],
        *,
        capacity: int | None = None,
        drain_seconds: float = DRAIN_SECONDS,
    ) -> None:
        self.pods: list[Pod] = []
        self.ready: list[Pod] = []
        """The pods that take requests."""
        self.desired = 0
        self.num_arrived = 0
        self.num_refused = 0
        """Requests that came while no replica was ready."""
        self.num_killed = 0
        """Requests that ended with their replica, unanswered."""
        self.on_ready: Callable[[], None] = _ignore
        """Called when a pod has become Ready."""
        self.pod_seconds = 0.0
        """The seconds that all pods together have been on nodes, counted up to the last `settle`."""
        self._agenda = agenda
        self._hardware = hardware
        self._drain_seconds = drain_seconds
        self._nodes = Nodes(hardware.node_seconds, hardware.pods_per_node, capacity)
        self._rng = random.Random(seed)  # noqa: S311  a simulation
        self._on_answer = on_answer
        self._turn = 0
        self._num_created = 0
        self._num_rollouts = 0
        self._is_replacing = False
        """Whether the rollout found no room for one more pod, so that old pods make room for new ones."""
        self._is_any_draining = False
        self._knows_prefixes = True
        self._settled_at = 0.0

    @property
    def active(self) -> list[Pod]:
        """The pods that are not draining, ready or not."""
        return [pod for pod in self.pods if not pod.is_draining]

    @property
    def revision(self) -> str:
        """The revision of new pods."""
        return f"revision-{self._num_rollouts}"

    def start(self, count: int) -> None:
        """Start with some pods, ready and warm: they were created a cold start ago.

        Raises ValueError if the cluster is too small.
        """
        self.desired = count
        for _ in range(count):
            pod = self._create(is_warm=True)
            pod.created_at -= self._draw_cold_start(pod)
            pod.node, pod.ready_at = self._nodes.place(self._agenda.now, is_ready=True), self._agenda.now
            if pod.node is None:
                raise ValueError(f"{count} replicas are more than the cluster's capacity: write fewer")
        self._refresh()

    def scale(self, count: int) -> None:
        """Create pods, or drain the idlest ones."""
        self.desired = count
        self._converge()
        self._remove_drained()

    def submit(self, request: Request) -> None:
        """Send a request to a replica. The gateway holds none: without a ready replica it refuses it."""
        self.num_arrived += 1
        if not self.ready:
            self.num_refused += 1
            return
        loads = [self._find_load(pod) for pod in self.ready]
        least = min(loads)
        idlest = [pod for pod, load in zip(self.ready, loads, strict=True) if load == least]
        self._turn += 1
        idlest[self._turn % len(idlest)].engine.submit(request)

    def _find_load(self, pod: Pod) -> float:
        """Return a pod's requests in flight with one more, over its share."""
        assert pod.ready_at is not None
        age = self._agenda.now - pod.ready_at
        share = max(age / SLOW_START_SECONDS, LEAST_SHARE) if age < SLOW_START_SECONDS else 1.0
        return (pod.engine.num_in_flight + 1) / share

    def _note_answer(self, answer: Answer) -> None:
        self._on_answer(answer)
        if self._is_any_draining:
            self._agenda.add(self._agenda.now, self._remove_drained)

    def _remove_drained(self) -> None:
        """Remove drained pods at once, even before the scaler's next look."""
        for pod in [pod for pod in self.pods if pod.is_draining and not pod.engine.num_in_flight]:
            self._remove(pod)

    def crash(self) -> None:
        """Lose the busiest pod with its requests, and create another one."""
        if self.ready:
            self._remove(max(self.ready, key=_count_in_flight))
            self._converge()

    def restart(self) -> None:
        """Restart the busiest pod's container: its requests are lost, and its counters are zero."""
        if not self.ready:
            return
        pod = max(self.ready, key=_count_in_flight)
        self.num_killed += pod.engine.stop()
        pod.engine, pod.ready_at = self._create_engine(pod.hardware, is_warm=False), None
        self._await_ready(pod, pod.hardware.restart_seconds)
        self._refresh()

    def lose_prefixes(self) -> None:
        """Let prompts begin unlike all earlier ones, for good: the prefix caches are of no use."""
        self._knows_prefixes = False
        for pod in self.pods:
            pod.engine.prefix_cache.share = 0.0

    def roll_out(self, hardware: Hardware) -> None:
        """Begin to replace all pods by pods of this hardware."""
        self._hardware = hardware
        self._num_rollouts += 1
        self._converge()

    def settle(self) -> None:
        """Count the pods' seconds since the last call. Call it before their number changes."""
        self.pod_seconds += self._nodes.num_pods * (self._agenda.now - self._settled_at)
        self._settled_at = self._agenda.now

    def _converge(self) -> None:
        """Bring each revision to its number of pods: in a rollout one more than desired in all."""
        active = self.active
        old = [pod for pod in active if pod.revision != self.revision]
        new = [pod for pod in active if pod.revision == self.revision]
        if not old:
            self._is_replacing = False
            self._fit(new, self.desired)
            return
        slack = self._choose_slack(old, new)
        needed = max(0, self.desired - slack - sum(pod.ready_at is not None for pod in new))
        kept = min(sum(pod.ready_at is not None for pod in old), needed)
        self._fit(old, kept)
        self._fit(new, min(self.desired, self.desired + 1 - slack - kept))

    def _choose_slack(self, old: Sequence[Pod], new: Sequence[Pod]) -> int:
        """Return 1 if an old pod has to make room for a new one, otherwise 0."""
        is_room_coming = any(pod.is_draining for pod in self.pods)
        if any(pod.node is None for pod in new) and not is_room_coming:
            self._is_replacing = True
        self._is_replacing = self._is_replacing and self.desired >= 2 and bool(old)
        return int(self._is_replacing)

    def _fit(self, pods: Sequence[Pod], count: int) -> None:
        """Create the missing pods, or drain the idlest ones."""
        for _ in range(count - len(pods)):
            self._create(is_warm=False)
            self._place_pending()
        youngest_first = list(reversed(pods))
        idlest = sorted(youngest_first, key=lambda pod: (pod.ready_at is not None, pod.engine.num_in_flight))
        for pod in idlest[: max(len(pods) - count, 0)]:
            self._drain(pod)

    def _drain(self, pod: Pod) -> None:
        """Stop new requests to a pod, and give it some time for its own."""
        pod.is_draining = True
        self._refresh()
        self._agenda.add(self._agenda.now, self._remove_drained)
        self._agenda.add(self._agenda.now + self._drain_seconds, lambda: self._remove(pod))

    def _remove(self, pod: Pod) -> None:
        """End a pod if it still exists; its unfinished requests are lost, and its room is free."""
        if pod not in self.pods:
            return
        self.settle()
        self.num_killed += pod.engine.stop()
        self.pods.remove(pod)
        if pod.node is not None:
            self._nodes.leave(pod.node, self._agenda.now)
        self._refresh()
        self._place_pending()

    def _refresh(self) -> None:
        self._is_any_draining = any(pod.is_draining for pod in self.pods)
        self.ready = [pod for pod in self.pods if pod.ready_at is not None and not pod.is_draining]

    def _place_pending(self) -> None:
        """Place pending pods while there is room; they are ready after their cold start."""
        self.settle()
        for pod in self.pods:
            if pod.node is not None or pod.is_draining:
                continue
            if (node := self._nodes.place(self._agenda.now)) is None:
                return
            pod.node = node
            wait = max(node.ready_at - self._agenda.now, 0.0)
            self._await_ready(pod, wait + self._draw_cold_start(pod))

    def _draw_cold_start(self, pod: Pod) -> float:
        spread = pod.hardware.cold_start_spread
        return pod.hardware.cold_start_seconds * math.exp(self._rng.gauss(-spread * spread / 2, spread))

    def _await_ready(self, pod: Pod, seconds: float) -> None:
        def become_ready() -> None:
            pod.ready_at = self._agenda.now
            self._refresh()
            self.on_ready()
            self._converge()

        self._agenda.add(self._agenda.now + seconds, become_ready)

    def _create(self, *, is_warm: bool) -> Pod:
        engine = self._create_engine(self._hardware, is_warm=is_warm)
        name = f"pod-{self._num_created}"
        pod = Pod(name, self._agenda.now, self._hardware, self.revision, engine)
        self._num_created += 1
        self.pods.append(pod)
        return pod

    def _create_engine(self, hardware: Hardware, *, is_warm: bool) -> Engine:
        rng = random.Random(self._rng.random())  # noqa: S311  a simulation
        engine = Engine(self._agenda, hardware, rng, self._note_answer, is_warm=is_warm)
        if not self._knows_prefixes:
            engine.prefix_cache.share = 0.0
        return engine
