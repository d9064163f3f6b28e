"""Where things stand in a raw pod's status. Pure."""

from collections.abc import Iterable
from typing import Any, NamedTuple

from millrace_operator.api.conditions import parse_time
from millrace_runtime import contract

MOST_RESTARTS = 3
SECONDS_PER_RESTART = 600.0
"""Of its pod's age, in which the container that fetches a model may fail once more than MOST_RESTARTS.

An outage of the source for some minutes takes a few runs, and a long download has hours for them. A container
that always fails does so every five or six minutes, as the kubelet backs off.
"""
FETCH_PREFIX = "millrace fetch: "
"""Before each line of the command that fetches."""


class FetchRun(NamedTuple):
    """What the kubelet tells of the container that fetches a model."""

    is_running: bool
    num_failures: int
    """Runs that ended, before the one that runs or ended well."""
    ended_at: float | None
    """When it ended last, in seconds since 1970; None where it never did, or nobody says so."""
    began_at: float | None = None
    """When its pod came to its node, in seconds since 1970; None where nobody says so."""
    failure: str = ""
    """What the last run said that failed, in one line; empty where none did, or it said nothing."""

    def gets_on(self, num_ended: int, now: float) -> bool:
        """Whether it did not fail too often for its age, together with `num_ended` pods before its own."""
        age = now - (now if self.began_at is None else self.began_at)
        return num_ended + self.num_failures <= MOST_RESTARTS + age / SECONDS_PER_RESTART


def find_condition(status: dict[str, Any], condition_type: str) -> dict[str, Any]:
    """Return the condition of that type; empty where there is none."""
    return next((c for c in status.get("conditions", []) if c.get("type") == condition_type), {})


def find_container(status: dict[str, Any]) -> dict[str, Any]:
    """Return the status of the replica's own container; empty where there is none."""
    statuses = status.get("containerStatuses", [])
    return next((c for c in statuses if c.get("name") == contract.CONTAINER_REPLICA), {})


def find_fetcher(status: dict[str, Any]) -> dict[str, Any]:
    """Return the status of the container that fetches the model, or asks for it; empty without one."""
    statuses = [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]
    return next((c for c in statuses if c.get("name") == contract.CONTAINER_FETCH), {})


def read_fetch(status: dict[str, Any]) -> FetchRun:
    """Return what is told of the container that fetches the model. One that has not begun does not run."""
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


def read_last_line(ended: dict[str, Any]) -> str:
    """Return the last thing that a container said which has ended; empty where it said nothing."""
    lines = [line.strip() for line in ended.get("message", "").splitlines() if line.strip()]
    return lines[-1].removeprefix(FETCH_PREFIX) if lines else ""


def list_others(status: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the statuses of containers that somebody added to the pod, such as a mesh, in their order."""
    own = {contract.CONTAINER_REPLICA, contract.CONTAINER_FETCH}
    statuses = (*status.get("initContainerStatuses", []), *status.get("containerStatuses", []))
    return [one for one in statuses if one.get("name") not in own]


def find_state(container: dict[str, Any], state: str) -> dict[str, Any] | None:
    """Return what a container's status says of its present state; None where it is in another one."""
    found: dict[str, Any] | None = container.get("state", {}).get(state)
    return found


def find_last_end(container: dict[str, Any]) -> dict[str, Any] | None:
    """Return how the container ended, now or before it began anew; None where it never did."""
    last: dict[str, Any] | None = container.get("lastState", {}).get("terminated")
    return find_state(container, "terminated") or last


def find_fetch_time(runs: Iterable[FetchRun], num_ended: int, now: float) -> float | None:
    """Return since when a deadline counts, in seconds since 1970; None where no fetch moves it.

    A download takes as long as it takes, and one that stands still ends itself. So a deadline stands still
    while its container runs, unless it failed too often for its age.

    `num_ended` pods have ended for good and were made anew. Each counts as a restart: else pods that are
    evicted again and again would be progress for ever.
    """
    times = (_find_time(run, now) for run in runs if run.gets_on(num_ended, now))
    return max((at for at in times if at is not None), default=None)


def _find_time(run: FetchRun, now: float) -> float | None:
    return now if run.is_running else run.ended_at
