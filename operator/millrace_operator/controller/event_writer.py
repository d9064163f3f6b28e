"""Writes Events about services. An Event that is repeated gets a higher count."""

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import replace

from millrace_operator.kube.errors import AbsentError, ClusterError
from millrace_operator.kube.kinds import Obj
from millrace_operator.kube.protocol import Cluster
from millrace_operator.status.event_aggregation import (
    Journal,
    Topic,
    WrittenEvent,
    render_again,
    render_event,
)
from millrace_operator.status.events import Note

LOG = logging.getLogger(__name__)
MOST_SECONDS = 5.0
"""The longest time to write one plan's Events. The service's next plan waits for them."""


class EventWriter:
    """Writes the Events of all services."""

    def __init__(self, cluster: Cluster, clock: Callable[[], float]) -> None:
        self._cluster = cluster
        self._clock = clock
        self._journal = Journal()

    async def write_all(self, service: Obj, notes: Iterable[Note]) -> None:
        """Write these notes within MOST_SECONDS: Events may have a store of their own, which may hang."""
        try:
            async with asyncio.timeout(MOST_SECONDS):
                for note in notes:
                    await self.write(service, note)
        except TimeoutError:
            LOG.warning("events not recorded: no answer within %.0f s", MOST_SECONDS)

    async def write(self, service: Obj, note: Note) -> None:
        """Write a note as a new Event, or raise the count of the Event that has it. Raises nothing."""
        now = self._clock()
        topic = self._journal.choose(service, note, now)
        written = self._journal.find(topic)
        try:
            if written is None or not await self._raise_count(
                service, note, topic, replace(written, last=now)
            ):
                event = await self._cluster.create_event(render_event(service, note, topic, now))
                self._journal.keep(topic, WrittenEvent(event["metadata"]["name"], 1, now))
        except ClusterError as error:  # an Event is optional: the conditions say the same
            LOG.warning("event not recorded: %s", error)

    async def _raise_count(self, service: Obj, note: Note, topic: Topic, written: WrittenEvent) -> bool:
        """Raise the count of an Event. Return whether the Event still exists."""
        written = replace(written, count=written.count + 1)
        try:
            fields = render_again(note, topic, written)
            await self._cluster.change_event(service["metadata"]["namespace"], written.name, fields)
        except AbsentError:
            return False
        self._journal.keep(topic, written)
        return True
