"""How much memory the bodies of requests take. Pure.

A body is held until a replica has begun to answer: until then another replica may have to get it.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

NAMESPACE_SHARE = 0.5
"""Of the budget, what requests to one namespace's services may have: slow ones leave room for the others."""


class BodyBudget:
    """Owner of the bytes that bodies take."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._of_namespaces: Counter[str] = Counter()
        self.num_bytes = 0
        """What they take now."""

    @contextmanager
    def share(self) -> Iterator["BodyShare"]:
        """Give a request its share, which is empty at first and is taken back at the exit."""
        share = BodyShare(self)
        try:
            yield share
        finally:
            self.take_back(share)

    def grow(self, share: "BodyShare", num_bytes: int) -> bool:
        """Let a share have so many bytes more. Return whether there was room for them."""
        if self.num_bytes + num_bytes > self._most_bytes:
            return False
        self.num_bytes += num_bytes
        share.num_bytes += num_bytes
        return True

    def assign(self, share: "BodyShare", namespace: str) -> bool:
        """Know to which namespace's service a whole body goes. Return whether that one had room for it."""
        if self._of_namespaces[namespace] + share.num_bytes > NAMESPACE_SHARE * self._most_bytes:
            return False
        share.namespace = namespace
        self._of_namespaces[namespace] += share.num_bytes
        return True

    def take_back(self, share: "BodyShare") -> None:
        """Know that a share's body is held no more."""
        self.num_bytes -= share.num_bytes
        if share.namespace is not None:
            self._of_namespaces[share.namespace] -= share.num_bytes
            if not self._of_namespaces[share.namespace]:
                del self._of_namespaces[share.namespace]
        share.num_bytes, share.namespace = 0, None


class BodyShare:
    """What one request's body takes of the budget."""

    def __init__(self, budget: BodyBudget) -> None:
        self._budget = budget
        self.num_bytes = 0
        self.namespace: str | None = None
        """That of the service that it goes to, once it is known."""

    def grow(self, num_bytes: int) -> bool:
        """Take so many bytes more. Return whether there was room for them."""
        return self._budget.grow(self, num_bytes)

    def assign(self, namespace: str) -> bool:
        """Know that it goes to a service of this namespace. Return whether there was room for it."""
        return self._budget.assign(self, namespace)

    def release(self) -> None:
        """Know that the body is held no more."""
        self._budget.take_back(self)
