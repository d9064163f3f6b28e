"""Whose turn it is to be asked. Pure.

A pod that keeps silent costs its whole timeout each time, and only so many are asked at once. So it is asked
ever more rarely, and after those that answer: a tenant's pods can't keep others' answers away.
"""

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from millrace_operator.cluster.kinds import ServiceKey

MOST_ROUNDS = 32
"""From one question to the next, for a pod that never answers in time: about a minute."""


class Asked(NamedTuple):
    """A pod to ask."""

    service: ServiceKey
    pod: str
    address: str
    began: float | None = None
    """When its container began, in seconds since 1970."""


class Turns:
    """Owner of how often each pod kept silent in a row, and for how many rounds it is left out."""

    def __init__(self) -> None:
        self._silences: Counter[Asked] = Counter()
        self._rounds: Counter[Asked] = Counter()

    def take(self, pods: Iterable[Asked]) -> list[Asked]:
        """Return which of the pods to ask in this round: first those that answer, of each service in turn.

        What is known of others than these is forgotten.
        """
        pods = list(pods)
        self._silences = Counter({one: count for one in pods if (count := self._silences[one])})
        self._rounds = Counter({one: count - 1 for one in pods if (count := self._rounds[one])})
        places: Counter[ServiceKey] = Counter()
        found = []
        for one in pods:
            if not self._rounds[one]:
                found.append((self._silences[one], places[one.service], one))
                places[one.service] += 1
        return [one for *_, one in sorted(found)]

    def note(self, one: Asked, *, is_silent: bool) -> None:
        """Know that a pod has answered, or refused to, or that it kept silent until its time was up."""
        if is_silent:
            self._silences[one] += 1
            self._rounds[one] = min(MOST_ROUNDS, 2 ** self._silences[one])
        else:
            self._silences.pop(one, None)
