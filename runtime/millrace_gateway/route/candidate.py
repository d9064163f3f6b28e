"""What a request's preference knows of the replicas that it may go to. Pure."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from millrace_gateway.route.load_report import LoadReport
from millrace_gateway.route.objects import Replica
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


Preference = Callable[[Sequence[Candidate]], str | None]
"""Chooses the uid of one of the candidates; None: it does not matter."""


def describe(replica: Replica, standing: Standing | None, now: float) -> Candidate:
    """Return the candidate; without a standing nothing is known of it."""
    share = find_share(now - replica.ready_at)
    if standing is None:
        return Candidate(replica, 0, share, None, 0)
    report = standing.report if now < standing.fresh_until else None
    change = standing.num_sequences - standing.num_sequences_then
    return Candidate(replica, standing.num_sequences, share, report, change)
