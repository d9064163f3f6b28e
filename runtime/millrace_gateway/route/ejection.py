"""Keeps requests from a replica that fails, for longer each time. Pure.

A replica that refuses a request, breaks off, or answers with one error after the other is ejected: it is
picked only if there is no other. It has nothing in flight, so it would otherwise be picked first until its
readiness probe fails. When its time is over, one request tries it. If that fails too, the next time is twice
as long, up to LONGEST_FACTOR times the first. Its first good answer ends all that.

Errors may be the requests' own. So one among answers counts for nothing, and where errors would eject more
than half of a service's replicas, they eject none: the others would get all that is good.
"""

from http import HTTPStatus

LONGEST_FACTOR = 32
"""From 2 s to 64 s."""
PROBE_SECONDS = 5.0
"""How long one request alone tries a replica whose ejection is over. Its answer may begin much later."""
MOST_ERRORS = 5
"""So many answers of 5xx in a row are a failure, as by Envoy's `consecutive_5xx`. One may be a request's."""


class Ejection:
    """What one replica's answers say about it."""

    __slots__ = ("ejected_until", "failed_at", "num_errors", "num_failures", "probed_at")

    def __init__(self) -> None:
        self.num_errors = 0
        """Answers of 5xx since the last good one."""
        self.num_failures = 0
        self.failed_at = self.ejected_until = self.probed_at = float("-inf")

    def is_ejected(self, now: float) -> bool:
        """Whether it failed at its last try, and it is not yet time for another one."""
        return self.num_failures > 0 and (now < self.ejected_until or now < self.probed_at + PROBE_SECONDS)

    @property
    def is_by_errors(self) -> bool:
        """Whether it has answered, with errors alone."""
        return self.num_errors >= MOST_ERRORS

    def begin_probe(self, now: float) -> None:
        """Record that a request is sent to it; after an ejection this one alone."""
        if self.num_failures and now >= self.ejected_until:
            self.probed_at = now

    def note_failure(self, now: float, seconds: float) -> None:
        """Record that it refused a request, or broke off. `seconds` is the time of a first ejection.

        Failures during an ejection are of requests that it had before: the next time is not longer for them.
        """
        self.failed_at = now
        self.probed_at = float("-inf")
        if now >= self.ejected_until:
            factor = min(2**self.num_failures, LONGEST_FACTOR)
            self.num_failures += 1
            self.ejected_until = now + seconds * factor

    def note_answer(self, status: int, now: float, seconds: float, *, is_generation: bool) -> None:
        """Record that it has begun an answer.

        After errors only a good answer to a generation is one: a broken engine refuses what is wrong, and
        counts tokens, as before. After a refusal each answer is good.
        """
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            self.num_errors += 1
            if self.is_by_errors or self.num_failures:
                self.note_failure(now, seconds)
        elif not self.num_errors or (is_generation and status < HTTPStatus.MULTIPLE_CHOICES):
            self.num_errors = self.num_failures = 0
            self.ejected_until = self.probed_at = float("-inf")
