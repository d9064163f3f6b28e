"""What a gateway knows of one replica: its requests there, its last report, its failures, its share. Pure.

A new replica has nothing in flight, so it would get all requests until it has as many as the others. Their
prompts would wait for each other, and its first steps are its slowest. So its share grows from nothing to a
full one within SLOW_START_SECONDS. On the simulated ramp W1 of `benchmarks.autoscaler` one request in a
hundred was late to its first token, nearly all of them in such a rush (a few seeds, measured once by hand).
"""

from millrace_gateway.route.ejection import Ejection
from millrace_gateway.route.load_report import LoadReport
from millrace_gateway.route.objects import Replica, ServiceKey
from millrace_runtime.contract import SLOW_START_SECONDS

LEAST_SHARE = 0.01
"""The share of a new replica, relative to a full one."""


class Standing(Ejection):
    """What is known of one replica."""

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


def find_share(age: float) -> float:
    """Return the share of a replica that has been Ready for `age` seconds, relative to a full one."""
    return max(min(age / SLOW_START_SECONDS, 1.0), LEAST_SHARE)
