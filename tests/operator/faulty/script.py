"""Which faults an API server is still to have, and which it has had."""

from enum import StrEnum


class Fault(StrEnum):
    """What can go wrong with one request. The first word says at what."""

    WRITE_CONFLICT = "write 409"
    WRITE_INVALID = "write 422"
    WRITE_THROTTLED = "write 429"
    WRITE_BROKEN = "write 500"
    WRITE_TIMEOUT_BEFORE = "write 504 before it lands"
    WRITE_TIMEOUT_AFTER = "write 504 after it has landed"
    LEASE_CONFLICT = "lease 409"
    LEASE_TIMEOUT_AFTER = "lease 504 after it has landed"
    LIST_THROTTLED = "list 429"
    LIST_BROKEN = "list 500"
    LIST_STALE = "list stale"
    PAGE_EXPIRED = "page 410"
    PAGE_THROTTLED = "page 429"
    PAGE_BROKEN = "page 500"
    GET_THROTTLED = "get 429"
    GET_BROKEN = "get 500"
    GET_STALE = "get stale"
    WATCH_EXPIRED = "watch 410"
    WATCH_THROTTLED = "watch 429"
    WATCH_BROKEN = "watch 500"
    EVENT_EXPIRED = "event ERROR 410"
    EVENT_BROKEN = "event ERROR 500"
    EVENT_CUT = "event cut within its line"
    EVENT_SLOW = "event byte by byte"
    EVENT_TWICE = "event twice"
    EVENT_OLD = "event followed by an older one"
    DELETION_HIDDEN = "deletion hidden"

    @property
    def stage(self) -> str:
        """At what it happens: a write, a list, a page after the first, an event and so on."""
        return self.value.partition(" ")[0]

    @property
    def status(self) -> int | None:
        """The HTTP status that it is; None for none."""
        return next((int(word) for word in self.value.split() if word.isdigit()), None)


class Script:
    """The faults to come, in their order. Each happens once, at the first request that it fits."""

    def __init__(self) -> None:
        self.pending: list[tuple[Fault, str]] = []
        """With the plural that a fault is kept for; empty for any."""
        self.happened: list[str] = []

    def add(self, fault: Fault, plural: str = "") -> None:
        self.pending.append((fault, plural))

    def clear(self) -> None:
        self.pending.clear()

    def take(self, stage: str, plural: str) -> Fault | None:
        """Return the first fault that fits, which then has happened."""
        for index, (fault, kept_for) in enumerate(self.pending):
            if fault.stage == stage and kept_for in ("", plural):
                del self.pending[index]
                self.happened.append(f"{fault} of {plural}")
                return fault
        return None
