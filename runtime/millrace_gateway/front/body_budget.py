"""The memory budget of request bodies. Pure.

The gateway holds a body until a replica has begun to answer: until then another replica may have to get it.
Each namespace has a part of the budget. A part may grow while it is no larger than the free rest: alone to a
half of the budget, beside a part with a third to another third. So even tenants that fill several parts leave
room for the others. The bodies of one client with a key grow in their namespace's part by the same rule: the
other clients of the service keep some of it.

The namespace of a body follows from the Host, or from `model` in the body once it has arrived: a body that
comes with its head counts only then. A body that still arrives for an unknown service counts for the owner of
its key. All such bodies without a key share one part, which a stranger may fill.
"""

from collections import Counter
from collections.abc import Hashable

HELD_BYTES = 4096
"""The least that a waiting request counts: about what its connection and a usual head take."""


class BodyBudget:
    """Owner of the memory of request bodies."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._parts: dict[str | None, int] = {}
        """Bytes by namespace; None: not known yet."""
        self._clients: Counter[Hashable] = Counter()
        """Bytes of the bodies of known clients."""
        self.num_bytes = 0
        """The bytes of all bodies now."""

    def open_share(self, namespace: str | None = None, *, head_bytes: int = 0) -> "BodyShare":
        """Return a request's share, which starts empty. The caller releases it."""
        return BodyShare(self, namespace, head_bytes)

    def take(self, namespace: str | None, client: Hashable, num_bytes: int, num_own: int) -> bool:
        """Add bytes to a part. Return whether there was room for them.

        `num_own` are those of the same body before: a client's only body needs room in its namespace's part
        alone.
        """
        if not num_bytes:
            return True
        part = self._parts.get(namespace, 0)
        if part + self.num_bytes + 2 * num_bytes > self._most_bytes:
            return False
        if client is not None:
            most_of_part = (self._most_bytes - (self.num_bytes - part)) // 2
            is_alone = self._clients[client] == num_own
            if not is_alone and self._clients[client] + part + 2 * num_bytes > most_of_part:
                return False
            self._clients[client] += num_bytes
        self._parts[namespace] = part + num_bytes
        self.num_bytes += num_bytes
        return True

    def give_back(self, namespace: str | None, client: Hashable, num_bytes: int) -> None:
        """Remove bytes from a part."""
        self._parts[namespace] -= num_bytes
        if not self._parts[namespace]:
            del self._parts[namespace]
        if client is not None:
            self._clients[client] -= num_bytes
            if not self._clients[client]:
                del self._clients[client]
        self.num_bytes -= num_bytes


class BodyShare:
    """The share of one request in the budget: its body, and while it waits its head."""

    __slots__ = ("_budget", "_client", "_head_bytes", "_is_held", "_namespace", "_num_bytes")

    def __init__(self, budget: BodyBudget, namespace: str | None, head_bytes: int) -> None:
        self._budget = budget
        self._head_bytes = head_bytes
        self._is_held = False
        self._namespace = namespace
        self._client: Hashable = None
        self._num_bytes = 0

    def grow(self, num_bytes: int) -> bool:
        """Add bytes. Return whether there was room for them."""
        has_room = self._budget.take(self._namespace, self._client, num_bytes, self._num_bytes)
        self._num_bytes += num_bytes if has_room else 0
        return has_room

    def hold(self) -> bool:
        """Count the head too, and HELD_BYTES at least: the request waits. Return whether there was room."""
        if not self._is_held:
            self._is_held = self.grow(max(self._head_bytes, HELD_BYTES - self._num_bytes))
        return self._is_held

    def hold_long_head(self) -> bool:
        """Count the head if it is longer than a usual one, until a replica begins to answer.

        Return whether there was room.
        """
        return self._head_bytes <= HELD_BYTES or self.hold()

    def assign(self, namespace: str, client: Hashable = None, num_bytes: int = 0) -> bool:
        """Move the share to the part of the service's namespace, and of its client if it is known now.

        `num_bytes` are added there. Return whether it had room.
        """
        client = self._client if client is None else client
        if (namespace, client) != (self._namespace, self._client):
            num_bytes += self._num_bytes
            self.release()
            self._namespace, self._client = namespace, client
        return self.grow(num_bytes)

    def release(self) -> None:
        """Release all bytes: the gateway holds the body no longer."""
        if self._num_bytes:
            self._budget.give_back(self._namespace, self._client, self._num_bytes)
            self._num_bytes = 0
