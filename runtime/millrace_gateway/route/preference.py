"""A request's preference among replicas: the one that has its beginning or its session. Pure.

A request without a preference goes to the least loaded replica (`balance.py`).
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from millrace_gateway.route.load_report import LoadReport
from millrace_gateway.route.objects import Replica, ServiceChanges, ServiceKey
from millrace_gateway.route.prefix import find_session, hash_prefix, hash_session
from millrace_gateway.route.prefix_affinity import Affinity, find_load
from millrace_gateway.route.prefix_affinity import Candidate as Home
from millrace_gateway.route.standing import Standing, find_share


class Candidate(NamedTuple):
    """A replica that may get a request."""

    replica: Replica
    num_own: int
    """This gateway's sequences at it."""
    share: float
    """Of a full replica's requests: less for one that has just started."""
    report: LoadReport | None
    """The last one, if it still counts."""
    num_change: int
    """By how many this gateway's sequences have become more since that report."""


Chooser = Callable[[Sequence[Candidate]], str | None]
"""Returns the uid of one of the candidates; None: the least loaded one."""


def describe_candidate(replica: Replica, standing: Standing | None, now: float) -> Candidate:
    """Return the candidate; without a standing nothing is known of it."""
    share = find_share(now - replica.ready_at)
    if standing is None:
        return Candidate(replica, 0, share, None, 0)
    report = standing.report if now < standing.fresh_until else None
    change = standing.num_sequences - standing.num_sequences_then
    return Candidate(replica, standing.num_sequences, share, report, change)


class Preferences:
    """Owner of what is known of each service's requests."""

    def __init__(self, *, by_user: bool) -> None:
        """`by_user`: the field `user` of a body names a session, too."""
        self._by_user = by_user
        self._affinities: dict[ServiceKey, Affinity] = {}
        self.num_gateways = 1
        """The gateways that share the services, with this one."""

    def read(
        self, service: ServiceKey, body: bytes, salt: bytes, session: bytes | None
    ) -> "Preference | None":
        """Return a request's preference; None if it has no prompt, and names no session."""
        if session is None and self._by_user:
            session = find_session(body)
        names = hash_prefix(body, salt)
        if not names and session is None:
            return None
        affinity = self._affinities.get(service)
        if affinity is None:
            affinity = self._affinities[service] = Affinity()
        return Preference(self, affinity, names, None if session is None else hash_session(session, salt))

    def forget_deleted(self, changes: ServiceChanges) -> None:
        """Forget deleted services."""
        for key in changes.deleted:
            self._affinities.pop(key, None)


class Preference:
    """One request's preference. Its choice counts the request, so it is asked once for each try."""

    __slots__ = ("_affinity", "_names", "_owner", "_session")

    def __init__(
        self, owner: Preferences, affinity: Affinity, names: tuple[int, ...], session: int | None
    ) -> None:
        self._owner = owner
        self._affinity = affinity
        self._names = names
        self._session = session

    def choose(self, candidates: Sequence[Candidate]) -> str:
        """Return the uid of one of the candidates."""
        num_gateways = self._owner.num_gateways
        homes = [Home(one.replica.uid, _find_load(one, num_gateways), one.share) for one in candidates]
        return self._affinity.choose(self._names, homes, self._session)


def _find_load(candidate: Candidate, num_gateways: int) -> float:
    report = candidate.report
    if report is None:
        return float(candidate.num_own)
    return find_load(report.waiting, report.running, report.kv_usage, candidate.num_change, num_gateways)
