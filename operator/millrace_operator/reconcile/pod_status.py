"""Where things stand in a raw pod's status. Pure."""

from typing import Any

from millrace_operator.reconcile.snapshot import Fetched
from millrace_operator.resources.conditions import parse_time
from millrace_runtime import contract


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


def is_getting_on(status: dict[str, Any], fetched: Fetched | None) -> bool:
    """Whether the fetcher runs and has got on since it began, however it ended before. A mere try is none."""
    running = find_state(find_fetcher(status), "running")
    began = None if running is None else parse_time(running.get("startedAt"))
    return fetched is not None and began is not None and fetched.at > began


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
