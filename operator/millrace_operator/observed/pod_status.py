"""Where things stand in a raw pod's status. Pure."""

from typing import Any, NamedTuple

from millrace_operator.api.conditions import parse_time
from millrace_runtime import contract

MOST_RESTARTS = 3
"""Of the container that fetches a model, until nobody believes any more that it gets on."""


class FetchRun(NamedTuple):
    """What the kubelet tells of the container that fetches a model."""

    is_running: bool
    num_failures: int
    """Runs that ended, before the one that runs or ended well."""
    ended_at: float | None
    """When it ended last, in seconds since 1970; None where it never did, or nobody says so."""

    @property
    def is_believed(self) -> bool:
        """Whether it runs, and did not fail too often."""
        return self.is_running and self.num_failures <= MOST_RESTARTS


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
    restarts = 0 if is_done else int(container.get("restartCount", 0))
    is_running = find_state(container, "running") is not None
    return FetchRun(is_running, restarts, parse_time(ended.get("finishedAt")))


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
