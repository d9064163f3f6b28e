"""Tells what happened to a service by Events. The same words again raise the count of an Event."""

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import replace

from millrace_operator.kube.errors import AbsentError, ClusterError
from millrace_operator.kube.kinds import Obj
from millrace_operator.kube.protocol import Cluster
from millrace_operator.status.events import Journal, Note, Told, Topic, render_again, render_event

LOG = logging.getLogger(__name__)
MOST_SECONDS = 5.0
"""For the Events of one plan together. The service's next plan waits so long."""


class Teller:
    """Writes the Events of all services."""

    def __init__(self, cluster: Cluster, clock: Callable[[], float]) -> None:
        self._cluster = cluster
        self._clock = clock
        self._journal = Journal()

    async def tell_all(self, service: Obj, notes: Iterable[Note]) -> None:
        """Tell these notes, within MOST_SECONDS: Events may have a store of their own, and it may hang."""
        try:
            async with asyncio.timeout(MOST_SECONDS):
                for note in notes:
                    await self.tell(service, note)
        except TimeoutError:
            LOG.warning("events not recorded: no answer within %.0f s", MOST_SECONDS)

    async def tell(self, service: Obj, note: Note) -> None:
        """Tell a note by a new Event, or by the one that tells it already. Raises nothing."""
        now = self._clock()
        topic = self._journal.choose(service, note, now)
        told = self._journal.find(topic)
        try:
            if told is None or not await self._raise_count(service, note, topic, replace(told, last=now)):
                event = await self._cluster.create_event(render_event(service, note, topic, now))
                self._journal.keep(topic, Told(event["metadata"]["name"], 1, now))
        except ClusterError as error:  # an Event is a courtesy: the conditions say the same
            LOG.warning("event not recorded: %s", error)

    async def _raise_count(self, service: Obj, note: Note, topic: Topic, told: Told) -> bool:
        """Raise the count of an Event. Return whether it is still there."""
        told = replace(told, count=told.count + 1)
        try:
            fields = render_again(note, topic, told)
            await self._cluster.change_event(service["metadata"]["namespace"], told.name, fields)
        except AbsentError:
            return False
        self._journal.keep(topic, told)
        return True
