"""What a gateway knows of one replica: its requests there, its last report, its failures, its share. Pure.

A new replica has nothing in flight, so it would get all requests until it has as many as the others. Their
prompts would wait for each other, and its first steps are its slowest. So its share grows from nothing to a
full one within SLOW_START_SECONDS. On the simulated ramp W1 of `benchmarks.autoscaler` one request in a
hundred was late to its first token, nearly all of them in such a rush (a few seeds, measured once by hand).
"""

from collections.abc import Mapping, Sequence

from millrace_gateway.route.ejection import Ejection
from millrace_gateway.route.load_report import LoadReport
from millrace_gateway.route.objects import Replica, ServiceKey
from millrace_runtime.contract import SLOW_START_SECONDS

LEAST_SHARE = 0.01
"""The share of a new replica, relative to a full one."""


class Standing(Ejection):
    """One replica as the gateway knows it."""

    __slots__ = (
        "fresh_until",
        "in_flight",
        "num_sequences",
        "num_sequences_then",
        "polled_at",
        "replica",
        "report",
        "reported_load",
        "service",
    )

    def __init__(self, replica: Replica | None = None) -> None:
        super().__init__()
        self.replica = replica
        self.service: ServiceKey
        """While it has requests of this gateway."""
        self.in_flight = 0
        """Requests."""
        self.num_sequences = 0
        """Of those requests."""
        self.num_sequences_then = 0
        """At the time of the report."""
        self.polled_at = float("-inf")
        self.report: LoadReport | None = None
        self.fresh_until = float("-inf")
        self.reported_load = 0
        """The sequences of the report, and those sent since."""

    def find_load(self, now: float) -> int:
        """Return its number of sequences, waiting and running."""
        load, reported = self.num_sequences, self.reported_load
        return reported if reported > load and now < self.fresh_until else load

    def rank_failed(self, now: float) -> tuple[bool, bool, float, float]:
        """Return its place among replicas that have failed, where there is no other: the lowest comes first.

        Replicas that refuse come first: another replica gets what they refuse. Then come those whose ejection
        is over, the least loaded first: they may be well, and slow to answer. Of the rest the one that failed
        the longest ago comes first.
        """
        if self.has_refused:
            return False, False, self.find_load(now), self.failed_at
        is_early = now < self.ejected_until
        return True, is_early, self.failed_at if is_early else self.find_load(now), self.failed_at


def find_share(age: float) -> float:
    """Return the share of a replica that has been Ready for `age` seconds, relative to a full one."""
    return 1.0 if age >= SLOW_START_SECONDS else max(age / SLOW_START_SECONDS, LEAST_SHARE)


def find_largest_load(replicas: Sequence[Replica], standings: Mapping[str, Standing], now: float) -> int:
    """Return the load of the replica that has the most."""
    found = (standings.get(replica.uid) for replica in replicas)
    return max((standing.find_load(now) for standing in found if standing), default=0)


def find_least_error_share(
    replicas: Sequence[Replica], standings: Mapping[str, Standing], now: float
) -> float:
    """Return the part of errors of the best replica that serves."""
    found = (standings.get(replica.uid) for replica in replicas)
    return min((one.error_share for one in found if one and one.is_serving(now)), default=0.0)


def find_last_resort(
    failed: Sequence[Replica], standings: Mapping[str, Standing], now: float, leaving: Replica | None
) -> Replica | None:
    """Return the best of replicas that have failed, or the one that leaves, if there is one.

    The leaving one comes after those that refuse, whose requests another replica gets, and before those that
    break off or err.
    """

    def rank(replica: Replica) -> tuple[bool, tuple[bool, bool, float, float]]:
        return replica.is_leaving, standings[replica.uid].rank_failed(now)

    best = min(failed, key=rank, default=None)
    if best is None or leaving is None:
        return best or leaving
    is_worse = best.is_leaving or not standings[best.uid].has_refused
    return leaving if is_worse else best
