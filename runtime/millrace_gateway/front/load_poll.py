"""Asks busy replicas for their load, and passes their reports to the balancer and the turnstiles."""

import asyncio
import logging
from collections.abc import Callable

from millrace_gateway.errors import GatewayError
from millrace_gateway.front.guard import Guard
from millrace_gateway.front.turnstiles import Turnstiles
from millrace_gateway.front.upstream import Upstream
from millrace_gateway.http.head import Headers, find_header
from millrace_gateway.route.balance import Balancer
from millrace_gateway.route.load_report import LoadReport, read_load_document, read_load_header
from millrace_gateway.route.objects import Replica
from millrace_runtime.contract import HEADER_LOAD, PATH_LOAD

logger = logging.getLogger(__name__)

TICK_SECONDS = 0.25
ANSWER_SECONDS = 2.0
NEW_SECONDS = 0.05
"""A report is kept at least so long: the gateway itself counts what it has sent since."""
_LOAD = HEADER_LOAD.lower().encode()


class LoadPoll:
    """Owner of the tasks that ask. Replicas also report their load with each answer."""

    def __init__(
        self,
        upstream: Upstream,
        balancer: Balancer,
        turnstiles: Turnstiles,
        guard: Guard,
        *,
        refresh: Callable[[], None],
    ) -> None:
        """`refresh` is called each TICK_SECONDS."""
        self._refresh = refresh
        self._upstream = upstream
        self._balancer = balancer
        self._turnstiles = turnstiles
        self._guard = guard
        self._asking: set[asyncio.Task[None]] = set()

    def note_answer(self, replica: Replica, headers: Headers, now: float) -> None:
        """Record the load in an answer's headers, unless the last report is younger than NEW_SECONDS."""
        if not self._balancer.wants_load(replica.uid, now - NEW_SECONDS):
            return
        text = find_header(headers, _LOAD)
        report = read_load_header(text.decode("latin-1"), now) if text else None
        if report is not None:
            self._note(replica, report)

    async def run(self) -> None:
        """Ask until cancelled. After a bug of ours it continues: turns and loads depend on it."""
        while True:
            await asyncio.sleep(TICK_SECONDS)
            try:
                self._tick(asyncio.get_running_loop().time())
            except Exception:
                logger.exception("a look at the replicas' loads failed")

    def _tick(self, now: float) -> None:
        for replica in self._balancer.polls_due(now):
            task = asyncio.create_task(self._ask(replica))
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)
        self._refresh()

    async def _ask(self, replica: Replica) -> None:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                headers = self._guard.choose_headers(None, replica)
                body = await self._upstream.fetch(replica, PATH_LOAD, headers)
        except (GatewayError, OSError) as error:  # of which TimeoutError is one
            logger.debug("pod %s/%s does not report its load: %r", replica.key.namespace, replica.pod, error)
            return
        report = read_load_document(body, asyncio.get_running_loop().time())
        if report is not None:
            self._note(replica, report)

    def _note(self, replica: Replica, report: LoadReport) -> None:
        self._balancer.note_load(replica.uid, report)
        self._turnstiles.note_load(replica, report, self._balancer.count_sequences(replica))
