"""A World that is followed by events alone, in virtual time: nothing else asks for a look."""

import copy

from millrace_operator.controller.queue import WorkQueue
from millrace_operator.controller.watch_recorder import WatchRecorder
from millrace_operator.controller.worker import Worker
from millrace_operator.kube.kinds import Obj, ObjectKey, kind_of
from millrace_operator.observed.pods import read_pod
from testing.world import World

TURN_SECONDS = 0.001
"""Of the clock for each work, so that none is at the very moment of another."""


MOST_LOOKS = 10_000


class Watched:
    """The world's operator behind its queue. Controllers act and watches tell after each reconcile."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.queue = WorkQueue(clock=lambda: world.now)
        self.recorder = WatchRecorder(world.cache, self.queue, clock=lambda: world.now)
        world.reconciler._writer._put_written = self.recorder.put_written
        self.worker = Worker(world.reconciler, world.cluster, world.cache, self.queue)
        self.looks: list[float] = []
        self.calm_looks: list[float] = []
        """Those while no replica finishes its requests: plans ask for one a second while one does."""
        self._told: dict[ObjectKey, Obj] = {}

    def watch(self) -> None:
        """Bring what changed since the last time, each object once."""
        now = self.world._list_watched()
        for key in self._told.keys() - now.keys():
            self._tell("DELETED", key, self._told.pop(key))
        for key, obj in now.items():
            if self._told.get(key) is not obj:
                self._tell("MODIFIED", key, obj)
                self._told[key] = obj

    def _tell(self, event_type: str, _: ObjectKey, obj: Obj) -> None:
        self.recorder.record_event(kind_of(obj), event_type, copy.deepcopy(obj))

    async def run(self, seconds: float) -> None:
        """Let so much time pass, and work whenever there is a key to work on."""
        until = self.world.now + seconds
        self.watch()
        while (wait := self.queue.seconds_to_next()) is not None and self.world.now + wait <= until:
            self.world.now += wait + TURN_SECONDS
            if self.queue.seconds_to_next() != 0:
                continue
            async with self.queue.work() as key:
                self.looks.append(self.world.now)
                if not any(read_pod(pod).is_marked for pod in self.world.pods()):
                    self.calm_looks.append(self.world.now)
                assert len(self.looks) < MOST_LOOKS, "a hot loop"
                await self.worker.work_on(key)
            self.watch()
            if self.world.run_controllers():
                self.watch()
        self.world.now = max(self.world.now, until)
