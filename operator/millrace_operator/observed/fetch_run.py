"""The container that fetches a model: its runs, its restarts, and how they move a deadline. Pure."""

from collections.abc import Iterable
from typing import Any, NamedTuple

from millrace_operator.api.conditions import parse_time
from millrace_operator.observed.pod_status import find_fetcher, find_last_end, find_state, read_last_line

MOST_RESTARTS = 3
SECONDS_PER_RESTART = 600.0
"""The fetching container may fail MOST_RESTARTS times, and once more for each such part of its pod's age.

An outage of the source for some minutes takes a few runs, and a long download has hours for them. A container
that always fails does so every five or six minutes, because the kubelet backs off.
"""


class FetchRun(NamedTuple):
    """The kubelet's report of the container that fetches a model."""

    is_running: bool
    num_failures: int
    """Runs that failed, before the present or successful one."""
    ended_at: float | None
    """When its last run ended, in seconds since 1970; None if that is unknown, or if no run ended."""
    began_at: float | None = None
    """When its pod came to its node, in seconds since 1970; None if that is unknown."""
    failure: str = ""
    """The last line of the last failed run; empty without one."""

    def makes_progress(self, num_ended: int, now: float) -> bool:
        """Whether it has not failed too often for its age. Each of `num_ended` earlier pods is a failure."""
        age = now - (now if self.began_at is None else self.began_at)
        return num_ended + self.num_failures <= MOST_RESTARTS + age / SECONDS_PER_RESTART


def read_fetch(status: dict[str, Any]) -> FetchRun:
    """Return the report of the container that fetches the model. Before its start it does not run."""
    container = find_fetcher(status)
    ended = find_last_end(container) or {}
    is_done = (find_state(container, "terminated") or {}).get("exitCode") == 0
    return FetchRun(
        is_running=find_state(container, "running") is not None,
        num_failures=0 if is_done else int(container.get("restartCount", 0)),
        ended_at=parse_time(ended.get("finishedAt")),
        began_at=parse_time(status.get("startTime")),
        failure=read_last_line(ended) if ended.get("exitCode") else "",
    )


def find_fetch_time(runs: Iterable[FetchRun], num_ended: int, now: float) -> float | None:
    """Return the time from which a deadline counts, in seconds since 1970; None if no fetch moves it.

    A download may take any time, and a stalled one ends itself. So the deadline stands still while its
    container runs, unless the container has failed too often for its age.

    `num_ended` pods have ended and were replaced. Each counts as a restart: otherwise pods that are evicted
    again and again would be progress for ever.
    """
    times = (_find_time(run, now) for run in runs if run.makes_progress(num_ended, now))
    return max((at for at in times if at is not None), default=None)


def _find_time(run: FetchRun, now: float) -> float | None:
    return now if run.is_running else run.ended_at
