"""Asks a server when a load wants it: after an answer, beside another request, in place of one that ended."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeVar

import aiohttp

from benchmarks.runtime.client import Dialect, open_session, read_events
from benchmarks.runtime.engines import ServerEngine
from benchmarks.runtime.errors import EngineError
from benchmarks.runtime.workload import Completion

T = TypeVar("T")


@dataclass
class Reply:
    """What has come of an answer so far; times in seconds of one clock."""

    sent: float = 0.0
    times: list[float] = field(default_factory=list)
    """When each event with text came."""
    tokens: list[int] = field(default_factory=list)
    """Token ids, where the dialect asks for them."""
    total: int = 0
    """Tokens, as the server counts them at the end."""
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    """Set with the first token."""

    @property
    def first_token_seconds(self) -> float:
        """From sending it to its first token."""
        return self.times[0] - self.sent

    def list_gaps(self, since: float = 0.0, until: float = float("inf")) -> list[float]:
        """Return the seconds between events, of those gaps that lie at least partly within the times."""
        return [after - before for before, after in pairwise(self.times) if after > since and before < until]

    def to_completion(self) -> Completion:
        """Return the whole answer."""
        return Completion(self.sent, self.times[0], self.times[-1], self.total)


class Caller:
    """A client of one server."""

    def __init__(self, session: aiohttp.ClientSession, dialect: Dialect) -> None:
        self._session, self._dialect = session, dialect

    async def ask(self, prompt: Sequence[int], num_tokens: int, reply: Reply | None = None) -> Reply:
        """Return the answer, in `reply` as it comes. Raises EngineError where it is not of so many tokens."""
        reply = reply or Reply()
        reply.sent = time.perf_counter()
        body = self._dialect.body(list(prompt), num_tokens)
        async for event in read_events(self._session, self._dialect, body):
            if self._dialect.count_tokens(event):
                reply.times.append(time.perf_counter())
                reply.begun.set()
            reply.tokens += self._dialect.read_tokens(event)
            reply.total = self._dialect.read_total(event) or reply.total
        if reply.total != num_tokens or not reply.times:
            raise EngineError(f"an answer has {reply.total} tokens instead of {num_tokens}")
        return reply


def call(engine: ServerEngine, load: Callable[[Caller], Awaitable[T]], dialect: Dialect | None = None) -> T:
    """Run a load against a server, in its own dialect or another. Raises EngineError."""

    async def run() -> T:
        async with open_session(engine.base) as session:
            return await load(Caller(session, dialect or engine.dialect))

    try:
        return asyncio.run(run())
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise EngineError(f"{engine.base} broke off: {error!r}") from error
