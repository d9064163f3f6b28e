"""Keeps requests from a replica that fails, for longer each time. Pure.

A replica that refuses a request, breaks off, or answers with one error after the other is ejected: it is
picked only if there is no other. It has nothing in flight, so it would otherwise be picked first until its
readiness probe fails. When its time is over, one request tries it. If that fails too, the next time is twice
as long, up to LONGEST_FACTOR times the first. A good answer ends the ejection where it begins, and the
doubling where it is whole: a replica may break off each time. What it answers to requests from before its
first failure proves nothing: it may fail at each new one, and end its long answers well.

The cause may lie elsewhere:

- Where most of a service's replicas have failed, those that refuse are tried again after the time of a first
  ejection each: another replica gets what they refuse. Where all have failed, none has a longer time.
- Errors may be the requests' own. Those of one client count for nothing if it fails at another replica, too,
  and this one has just answered others well. A replica goes on that has just answered somebody well and errs
  hardly more often than the best one of its service. It gets no more than the others, though an error is
  quick.
"""

from collections.abc import Collection, Hashable, Mapping
from http import HTTPStatus
from typing import NamedTuple

LONGEST_FACTOR = 32
"""From 2 s to 64 s."""
PROBE_SECONDS = 5.0
"""How long one request alone tries a replica whose ejection is over. Its answer may begin much later."""
MOST_ERRORS = 5
"""So many answers of 5xx in a row are a failure, as by Envoy's `consecutive_5xx`. One may be a request's."""
TOLERATED_SECONDS = 10.0
"""How long after a good answer to a generation a replica's errors may be the requests' own."""
TOLERATED_MORE = 0.4
"""How much larger the part of errors may be than at the best replica. Five in a row alone make it 0.49."""
_KEPT = 7 / 8
"""The weight of the earlier part of errors when an answer comes."""
OTHERS_SECONDS = 5.0
"""How long after a good answer to another client one client's errors may be its own."""
MOST_SUSPECTS = 4096
"""With more clients that err, all are forgotten: the errors of each then count again at one replica."""
_NEVER = float("-inf")


class Suspects:
    """Clients whose requests fail, since their last good answer.

    One that fails at a second replica, too, may be the cause: a client of one broken replica is served well
    by the others.
    """

    def __init__(self) -> None:
        self._first: dict[Hashable, object] = {}
        """Where each failed first; None: at several."""

    def add(self, client: Hashable, replica: object) -> bool:
        """Record an error. Return whether the client has failed at another replica, too."""
        if client not in self._first and len(self._first) >= MOST_SUSPECTS:
            self._first.clear()
        if self._first.setdefault(client, replica) is replica:
            return False
        self._first[client] = None
        return True

    def discard(self, client: Hashable) -> None:
        """Record that a client has got a good answer."""
        self._first.pop(client, None)


class Ejection:
    """What one replica's answers say about it."""

    __slots__ = (
        "_erring",
        "_fails_since",
        "_other_at",
        "_served",
        "ejected_until",
        "error_share",
        "failed_at",
        "generated_at",
        "has_refused",
        "is_doubted",
        "num_breaks",
        "num_errors",
        "num_failures",
        "probed_at",
    )

    def __init__(self) -> None:
        self.num_errors = 0
        """Answers of 5xx since the last good one, without those that are one client's own."""
        self.num_failures = 0
        """Ejections since the last answer that was whole."""
        self.num_breaks = 0
        """Those of them that were no errors."""
        self.is_doubted = False
        """Whether it has failed, and has begun no good answer since."""
        self.has_refused = False
        """Whether its last failure was a refusal, which is no client's answer."""
        self.failed_at = self.ejected_until = self.probed_at = _NEVER
        self.generated_at = _NEVER
        """When it last began a good answer to a generation."""
        self.error_share = 0.0
        """The part of errors among its last few answers to generations."""
        self._erring: tuple[Hashable, ...] = ()
        """The clients that got errors since the last good answer; at most two of them."""
        self._fails_since = _NEVER
        """When the first of these errors came, or the first refusal or break."""
        self._served: Hashable = None
        """The client of the last good answer."""
        self._other_at = _NEVER
        """When the last good answer to another client than that one began."""

    def is_ejected(self, now: float, longest: float = float("inf")) -> bool:
        """Whether it is not yet time for another try, `longest` seconds after its last failure at most."""
        until = min(self.ejected_until, self.failed_at + longest)
        return self.is_doubted and (now < until or now < self.probed_at + PROBE_SECONDS)

    @property
    def is_by_errors(self) -> bool:
        """Whether it has answered, with errors alone."""
        return self.num_errors >= MOST_ERRORS

    def is_serving(self, now: float) -> bool:
        """Whether it has just answered a generation well, and has not refused or broken off since."""
        return now < self.generated_at + TOLERATED_SECONDS and (self.is_by_errors or not self.is_doubted)

    def note_failure(self, now: float, seconds: float, *, is_refusal: bool) -> None:
        """Record that it refused a request, or broke off. `seconds` is the time of a first ejection."""
        self.num_errors = 0  # it can't even answer
        if self._fails_since == _NEVER:
            self._fails_since = now
        self._eject(now, seconds, is_refusal=is_refusal, is_error=False)

    def note_answer(
        self,
        status: int,
        now: float,
        seconds: float,
        *,
        is_generation: bool,
        asked_at: float,
        client: Hashable,
        suspects: Suspects,
    ) -> None:
        """Record that it has begun an answer.

        `asked_at` is when the request was sent; `client` is its client, None if unknown.

        After errors only a good answer to a generation ends the ejection: a broken engine refuses invalid
        requests and counts tokens as before. After a refusal or a break any answer without an error does.
        """
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            if self._is_own_error(client, now, suspects):
                self.note_nothing()
            else:
                self._note_error(now, seconds)
        elif is_generation and status < HTTPStatus.MULTIPLE_CHOICES:
            suspects.discard(client)
            self._note_generated(now, asked_at, client)
        elif not self.num_errors and asked_at >= self._fails_since:
            self._trust()
        else:
            self.note_nothing()

    def note_nothing(self) -> None:
        """Record that a request has ended that proves nothing: the next one may try the replica."""
        self.probed_at = _NEVER

    def note_whole(self) -> None:
        """Record that a good answer to a generation has ended as it should."""
        if not self.is_doubted:
            self.num_failures = self.num_breaks = 0

    def forgive(self) -> None:
        """Record that another process answers now."""
        self.num_failures = self.num_breaks = 0
        self.generated_at = self._other_at = _NEVER
        self.error_share = 0.0
        self._trust()

    def shorten(self, seconds: float) -> None:
        """Forget that it failed again and again: so did all others."""
        self.num_failures = min(self.num_failures, 1)
        self.num_breaks = min(self.num_breaks, 1)
        self.ejected_until = min(self.ejected_until, self.failed_at + seconds)

    def errs_like(self, least_error_share: float, now: float) -> bool:
        """Whether its errors may be the requests' own, beside a replica with that part of errors."""
        is_near = self.error_share <= least_error_share + TOLERATED_MORE
        return is_near and self.is_by_errors and self.is_serving(now)

    def _note_generated(self, now: float, asked_at: float, client: Hashable) -> None:
        if client != self._served:
            self._served, self._other_at = client, self.generated_at
        self.generated_at = now
        if asked_at >= self._fails_since:
            self.error_share *= _KEPT
            self._trust()

    def _is_own_error(self, client: Hashable, now: float, suspects: Suspects) -> bool:
        """Whether the client fails elsewhere, too, while this replica serves another well and fails no
        other.
        """
        if self._fails_since == _NEVER:
            self._fails_since = now
        if len(self._erring) < 2 and client not in self._erring:
            self._erring = (*self._erring, client)
        if client is None or not suspects.add(client, self) or self._erring != (client,):
            return False
        other_at = self._other_at if self._served == client else self.generated_at
        return now < other_at + OTHERS_SECONDS

    def _note_error(self, now: float, seconds: float) -> None:
        self.num_errors += 1
        self.error_share = 1 - (1 - self.error_share) * _KEPT
        if self.is_by_errors or self.is_doubted:
            self._eject(now, seconds, is_refusal=False, is_error=True)

    def _trust(self) -> None:
        self.is_doubted = False
        self._erring, self._fails_since = (), _NEVER
        if self.num_errors:  # the errors were the requests' own, or are over; a break may come again
            self.num_errors, self.num_failures = 0, self.num_breaks
        self.ejected_until = self.probed_at = _NEVER

    def _eject(self, now: float, seconds: float, *, is_refusal: bool, is_error: bool) -> None:
        """Failures during an ejection are of requests that it had before: the next time is as long."""
        self.is_doubted = True
        self.has_refused = is_refusal
        self.failed_at = now
        self.probed_at = _NEVER
        if now >= self.ejected_until:
            factor = min(2**self.num_failures, LONGEST_FACTOR)
            self.num_failures += 1
            self.num_breaks += not is_error
            self.ejected_until = now + seconds * factor


class Judgement(NamedTuple):
    """The uids of a service's doubted replicas, by what becomes of them."""

    avoided: Collection[str] = ()
    """They get a request only if there is no other replica."""
    tolerated: Collection[str] = ()
    """Their errors may be the requests' own."""


ALL_ARE_GOOD = Judgement()


def judge(
    doubted: Mapping[str, Ejection], num_replicas: int, least_error_share: float, now: float, seconds: float
) -> Judgement:
    """Return which of a service's doubted replicas are avoided, and which are tolerated.

    `least_error_share` is that of its best replica, `seconds` the time of a first ejection.
    """
    tolerated = {uid for uid, one in doubted.items() if one.errs_like(least_error_share, now)}
    failing = {uid: one for uid, one in doubted.items() if uid not in tolerated}
    longest = seconds if 2 * len(failing) > num_replicas else float("inf")
    avoided = {
        uid
        for uid, one in failing.items()
        if one.is_ejected(now, longest if one.has_refused else float("inf"))
    }
    return Judgement(avoided, tolerated)
