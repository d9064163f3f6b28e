"""Keeps requests from a replica that fails, for longer each time. Pure.

A replica that refuses a request, breaks off, or answers with one error after the other is ejected: it is
picked only if there is no other. It has nothing in flight, so it would otherwise be picked first until its
readiness probe fails. When its time is over, one request tries it. If that fails too, the next time is twice
as long, up to LONGEST_FACTOR times the first. A good answer ends the ejection where it begins, and the
doubling where it is whole: a replica may break off each time.

Where most of a service's replicas have failed, the few others would get all requests, and the cause may lie
elsewhere. Those that refuse are tried again after the time of a first ejection each: another replica gets
what they refuse. Errors may be the requests' own: replicas that have just answered others well go on. They
get no more than the others, though they have little in flight, since an error is quick.
"""

from collections.abc import Collection, Mapping
from http import HTTPStatus
from typing import NamedTuple

LONGEST_FACTOR = 32
"""From 2 s to 64 s."""
PROBE_SECONDS = 5.0
"""How long one request alone tries a replica whose ejection is over. Its answer may begin much later."""
MOST_ERRORS = 5
"""So many answers of 5xx in a row are a failure, as by Envoy's `consecutive_5xx`. One may be a request's."""
TOLERATED_SECONDS = 30.0
"""How long after a good answer to a generation a replica's errors may be the requests' own."""
_NEVER = float("-inf")


class Ejection:
    """What one replica's answers say about it."""

    __slots__ = (
        "ejected_until",
        "failed_at",
        "generated_at",
        "has_refused",
        "is_doubted",
        "num_errors",
        "num_failures",
        "probed_at",
    )

    def __init__(self) -> None:
        self.num_errors = 0
        """Answers of 5xx since the last good one."""
        self.num_failures = 0
        """Ejections since the last answer that was whole."""
        self.is_doubted = False
        """Whether it has failed, and has begun no good answer since."""
        self.has_refused = False
        """Whether its last failure was a refusal, which is no client's answer."""
        self.failed_at = self.ejected_until = self.probed_at = _NEVER
        self.generated_at = _NEVER
        """When it last began a good answer to a generation."""

    def is_ejected(self, now: float, longest: float = float("inf")) -> bool:
        """Whether it is not yet time for another try, `longest` seconds after its last failure at most."""
        until = min(self.ejected_until, self.failed_at + longest)
        return self.is_doubted and (now < until or now < self.probed_at + PROBE_SECONDS)

    @property
    def is_by_errors(self) -> bool:
        """Whether it has answered, with errors alone."""
        return self.num_errors >= MOST_ERRORS

    def note_failure(self, now: float, seconds: float, *, is_refusal: bool) -> None:
        """Record that it refused a request, or broke off. `seconds` is the time of a first ejection."""
        self.num_errors = 0  # it can't even answer
        self._eject(now, seconds, is_refusal=is_refusal)

    def note_answer(self, status: int, now: float, seconds: float, *, is_generation: bool) -> None:
        """Record that it has begun an answer.

        After errors only a good answer to a generation is one: a broken engine refuses what is wrong, and
        counts tokens, as before. After a refusal each answer is good.
        """
        is_generated = is_generation and status < HTTPStatus.MULTIPLE_CHOICES
        if is_generated:
            self.generated_at = now
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            self.num_errors += 1
            if self.is_by_errors or self.is_doubted:
                self._eject(now, seconds, is_refusal=False)
        elif is_generated or not self.num_errors:
            self._trust()
        else:
            self.note_nothing()

    def note_nothing(self) -> None:
        """Record that a request has ended that proves nothing: the next one may try the replica."""
        self.probed_at = _NEVER

    def note_whole(self) -> None:
        """Record that a good answer to a generation has ended as it should."""
        if not self.is_doubted:
            self.num_failures = 0

    def forgive(self) -> None:
        """Record that another process answers now."""
        self.num_failures = 0
        self.generated_at = _NEVER
        self._trust()

    def _trust(self) -> None:
        self.is_doubted = False
        if self.num_errors:  # the errors were the requests' own, or are over; a break may come again
            self.num_errors = self.num_failures = 0
        self.ejected_until = self.probed_at = _NEVER

    def _eject(self, now: float, seconds: float, *, is_refusal: bool) -> None:
        """Failures during an ejection are of requests that it had before: the next time is as long."""
        self.is_doubted = True
        self.has_refused = is_refusal
        self.failed_at = now
        self.probed_at = _NEVER
        if now >= self.ejected_until:
            factor = min(2**self.num_failures, LONGEST_FACTOR)
            self.num_failures += 1
            self.ejected_until = now + seconds * factor


class Judgement(NamedTuple):
    """What becomes of a service's replicas that are doubted, by uid."""

    avoided: Collection[str] = ()
    """They get a request only if there is no other replica."""
    tolerated: Collection[str] = ()
    """Their errors may be the requests' own."""


ALL_ARE_GOOD = Judgement()


def judge(doubted: Mapping[str, Ejection], num_replicas: int, now: float, seconds: float) -> Judgement:
    """Return what becomes of the doubted ones among a service's replicas.

    `seconds` is the time of a first ejection.
    """
    if 2 * len(doubted) <= num_replicas:
        return Judgement([uid for uid, one in doubted.items() if one.is_ejected(now)])
    avoided, tolerated = [], []
    for uid, one in doubted.items():
        if one.is_by_errors and now < one.generated_at + TOLERATED_SECONDS:
            tolerated.append(uid)
        elif one.is_ejected(now, seconds if one.has_refused else float("inf")):
            avoided.append(uid)
    return Judgement(avoided, tolerated)
