"""A service's replicas in virtual time: created, ready after a cold start, asked by a gateway, drained."""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

from millrace_operator.autoscale.simulate.agenda import Agenda
from millrace_operator.autoscale.simulate.engine import Answer, Engine
from millrace_operator.autoscale.simulate.hardware import Hardware
from millrace_operator.autoscale.simulate.load import Request


@dataclass(slots=True, eq=False)
class Pod:
    """One replica's pod."""

    name: str
    created_at: float
    engine: Engine
    ready_at: float | None = None
    is_draining: bool = False


class Service:
    """The pods of one service behind a gateway that asks the one with the fewest requests in flight."""

    def __init__(
        self, agenda: Agenda, hardware: Hardware, seed: int, on_answer: Callable[[Answer], None]
    ) -> None:
        self.pods: list[Pod] = []
        self.num_arrived = 0
        self.num_refused = 0
        """Requests that came while no replica was ready."""
        self.pod_seconds = 0.0
        """Of all pods from creation until gone, up to `now` of the last `settle`."""
        self._agenda = agenda
        self.hardware = hardware
        self._rng = random.Random(seed)  # noqa: S311  a simulation
        self._on_answer = on_answer
        self._num_created = 0
        self._settled_at = 0.0

    @property
    def ready(self) -> list[Pod]:
        """The pods that take requests."""
        return [pod for pod in self.pods if pod.ready_at is not None and not pod.is_draining]

    @property
    def active(self) -> list[Pod]:
        """The pods that are not draining, ready or not."""
        return [pod for pod in self.pods if not pod.is_draining]

    def start(self, count: int) -> None:
        """Have so many pods, ready at once."""
        for _ in range(count):
            self._create().ready_at = self._agenda.now

    def scale(self, count: int) -> None:
        """Create pods, or let the ones with the least to do finish and go."""
        self.settle()
        active = self.active
        for _ in range(count - len(active)):
            self._create_cold()
        idlest = sorted(active, key=lambda pod: (pod.ready_at is not None, pod.engine.num_in_flight))
        for pod in idlest[: max(len(active) - count, 0)]:
            pod.is_draining = True
        self.remove_drained()

    def submit(self, request: Request) -> None:
        """Send a request to a replica."""
        self.num_arrived += 1
        ready = self.ready
        if not ready:
            self.num_refused += 1
            return
        min(ready, key=lambda pod: pod.engine.num_in_flight).engine.submit(request)

    def remove_drained(self) -> None:
        """Let pods go that have finished what they had."""
        if any(pod.is_draining for pod in self.pods):
            self.settle()
            self.pods = [pod for pod in self.pods if not pod.is_draining or pod.engine.num_in_flight]

    def settle(self) -> None:
        """Count the seconds of pods since this was called last. Called before their number changes."""
        self.pod_seconds += len(self.pods) * (self._agenda.now - self._settled_at)
        self._settled_at = self._agenda.now

    def _create_cold(self) -> None:
        pod, hardware = self._create(), self.hardware
        spread = hardware.cold_start_spread
        seconds = hardware.cold_start_seconds * math.exp(self._rng.gauss(-spread * spread / 2, spread))

        def become_ready() -> None:
            pod.ready_at = self._agenda.now

        self._agenda.add(self._agenda.now + seconds, become_ready)

    def _create(self) -> Pod:
        rng = random.Random(self._rng.random())  # noqa: S311  a simulation
        engine = Engine(self._agenda, self.hardware, rng, self._on_answer)
        pod = Pod(f"pod-{self._num_created}", self._agenda.now, engine)
        self._num_created += 1
        self.pods.append(pod)
        return pod
