"""The state of our watches: whether they live, and which complete lists they have brought."""

import asyncio
import contextlib
import math
from collections.abc import Callable, Iterable, Sequence

from millrace_operator.kube.kinds import Kind, Role, Scope


class WatchHealth:
    """Whether the watches live. Times are seconds of `clock`, which never goes back."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._expected_since: dict[str, float] = {}
        """By kind, since when an event is due: each kind has a watch of its own, which may die alone."""
        self._lived_at: dict[Scope, float] = {}
        """When the watch of each scope that we follow ourselves gave its last sign of life."""
        self._failing: set[Scope] = set()
        """The scopes whose watch failed in its last try."""
        self._away_until = -math.inf
        """When all of them failed last: the API server was away, and no event could come."""
        self.last_event_at = clock()

    def expect_event(self, kind: str) -> None:
        """Record that a write of ours succeeded, so that an event of this kind is due."""
        self._expected_since.setdefault(kind, self._clock())

    def note_event(self, kind: Kind) -> None:
        """Record that an event of this kind came.

        Those of nodes don't count for `last_event_at`: they come every few seconds while all else is silent.
        """
        if kind.role is not Role.NODE:
            self.last_event_at = self._clock()
        self._expected_since.pop(kind.kind, None)

    def note_list(self, kind: Kind) -> None:
        """Record that a complete list of this kind came."""
        self.last_event_at = self._clock()
        self._expected_since.pop(kind.kind, None)

    def note_life(self, scope: Scope) -> None:
        """Record that the watch of this scope goes on."""
        now = self._clock()
        if self._is_away():
            self._away_until = now
        self._failing.discard(scope)
        self._lived_at[scope] = now

    def note_failure(self, scope: Scope) -> None:
        """Record that the watch of this scope goes on, and that its last try failed."""
        self.note_life(scope)
        self._failing.add(scope)

    def overdue_seconds(self) -> float:
        """Return how long the event after a write of ours has not come; 0 when none is due.

        None is due while all watches fail in their tries: then the API server is away, and we are well.
        """
        if not self._expected_since or self._is_away():
            return 0.0
        return self._clock() - max(self._away_until, min(self._expected_since.values()))

    def silent_seconds(self) -> float:
        """Return for how long the quietest watch has shown no life: no event, bookmark, list or failed try.

        It needs no write of ours, so it works on a replica that does not lead, and for each namespace alone.
        Kopf's watch is not among them: it ends by itself without a bookmark for 70 s, and is started again.
        """
        return self._clock() - min(self._lived_at.values()) if self._lived_at else 0.0

    def _is_away(self) -> bool:
        return bool(self._lived_at) and self._failing >= self._lived_at.keys()


class WatchedLists:
    """Which scopes have been listed completely by a watch, and which lists are on their way."""

    def __init__(self, scopes: Sequence[Scope]) -> None:
        self.scopes = scopes
        """All that the operator looks after."""
        self._listed: set[Scope] = set()
        self._awaited: set[Scope] = set()
        self._missing: set[Scope] = set()
        self._is_complete = asyncio.Event()
        self._is_complete.set()

    def expect(self, scope: Scope) -> None:
        """Record that a complete list of this scope is on its way."""
        self._awaited.add(scope)
        self._is_complete.clear()

    def note(self, scope: Scope) -> None:
        """Record that a watch has brought a complete list of this scope."""
        self._listed.add(scope)
        self._missing.discard(scope)
        self.give_up(scope)

    def give_up(self, scope: Scope) -> None:
        """Record that no list comes: the namespace is gone, or there is no Role in it."""
        self._awaited.discard(scope)
        if not self._awaited:
            self._is_complete.set()

    def note_missing(self, scopes: Iterable[Scope]) -> None:
        """Record that nothing is known of these scopes until a watch lists them."""
        self._missing = set(scopes) - self._listed

    async def wait(self, seconds: float) -> None:
        """Wait until every list that is on its way has come, but at most for so many seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._is_complete.wait()

    @property
    def lacks_any(self) -> bool:
        """Whether a watch has yet to list a scope, so that objects may be there which nobody has seen."""
        return any(scope not in self._listed for scope in self.scopes if not scope.kind.is_optional)

    def is_known(self, namespace: str) -> bool:
        """Whether all kinds of a namespace have been listed, so that no plan is made of half of them."""
        return not self._missing or not any(
            scope.namespace in (None, namespace) and scope.kind.role is not Role.SERVICE
            for scope in self._missing
        )

    def find_unlisted(self) -> list[Scope]:
        """Return the scopes of which no watch has brought a complete list, and each change since then."""
        return [scope for scope in self.scopes if scope not in self._listed]
