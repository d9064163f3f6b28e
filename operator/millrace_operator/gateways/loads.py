"""What the gateways have at pods, put together from what each of them tells. Pure."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from millrace_operator.reconcile.snapshot import Demand, PodLoad


class MalformedLineError(ValueError):
    """A gateway's line is not what we can read."""


@dataclass
class _Told:
    """What one gateway has told so far."""

    in_flight: dict[str, int] = field(default_factory=dict)
    """Requests by the pods' uids."""
    leaving: frozenset[str] = frozenset()
    num_open: dict[str, int] = field(default_factory=dict)
    """Requests of services, by `<namespace>/<name>`."""
    ended: dict[str, float] = field(default_factory=dict)
    """When each service's last request ended, in seconds since 1970."""
    known: float = math.inf
    """Since when it knows of requests."""


class Loads:
    """Owner of what each gateway tells. Gateways and pods go by their uids."""

    def __init__(self) -> None:
        self._expected: frozenset[str] = frozenset()
        self._told: dict[str, _Told] = {}

    def expect(self, gateways: Iterable[str]) -> None:
        """Know which gateways there are: while one of them does not tell, no pod's load is known."""
        self._expected = frozenset(gateways)
        for gone in self._told.keys() - self._expected:
            del self._told[gone]

    def note(self, gateway: str, line: Any, now: float) -> list[str]:
        """Take in a gateway's next line, parsed, and return the services that have had a request since.

        Raises MalformedLineError, and then takes in nothing. `now` is seconds since 1970.
        """
        told = self._told.get(gateway, _Told())
        try:
            num_open = _read_counts(line.get("open", {}))
            ended = {str(key): now - float(age) for key, age in line.get("ended", {}).items()}
            self._told[gateway] = _Told(
                _merge(told.in_flight, _read_counts(line.get("in_flight", {}))),
                frozenset(map(str, line["leaving"])) if "leaving" in line else told.leaving,
                _merge(told.num_open, num_open),
                told.ended | ended,
                now - float(line["known"]) if "known" in line else told.known,
            )
        except (AttributeError, TypeError, ValueError) as error:
            raise MalformedLineError(f"no line of a gateway: {error}") from error
        return [key for key, count in num_open.items() if count]

    def lose(self, gateway: str) -> None:
        """Know that the gateway tells nothing any more. Its next line is a first one."""
        self._told.pop(gateway, None)

    def read(self, pods: Iterable[str]) -> Mapping[str, PodLoad]:
        """Return the pods' loads; none while there is a gateway that does not tell, or no gateway."""
        if not self._is_complete:
            return {}
        told = self._told.values()
        return {
            uid: PodLoad(
                sum(one.in_flight.get(uid, 0) for one in told), all(uid in one.leaving for one in told)
            )
            for uid in pods
        }

    def read_demand(self, key: str) -> Demand:
        """Return what is known of a service's requests, by `<namespace>/<name>`."""
        told = self._told.values()
        num_open = sum(one.num_open.get(key, 0) for one in told)
        if num_open or not self._is_complete:
            return Demand(num_open, None)
        return Demand(0, max(one.ended.get(key, one.known) for one in told))

    @property
    def _is_complete(self) -> bool:
        """Whether there is a gateway, and each of them tells."""
        return bool(self._expected) and self._expected <= self._told.keys()


def _read_counts(found: Mapping[str, Any]) -> dict[str, int]:
    return {str(name): int(count) for name, count in found.items()}


def _merge(before: Mapping[str, int], changed: Mapping[str, int]) -> dict[str, int]:
    return {name: count for name, count in {**before, **changed}.items() if count}
