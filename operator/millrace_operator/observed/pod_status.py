"""Readers of a raw pod's status. Pure."""

from typing import Any

from millrace_runtime import contract

FETCH_PREFIX = "millrace fetch: "
"""The prefix of each line of the fetching command."""


def find_condition(status: dict[str, Any], condition_type: str) -> dict[str, Any]:
    """Return the condition of that type; empty without one."""
    return next((c for c in status.get("conditions", []) if c.get("type") == condition_type), {})


def find_container(status: dict[str, Any]) -> dict[str, Any]:
    """Return the status of the replica's own container; empty without one."""
    statuses = status.get("containerStatuses", [])
    return next((c for c in statuses if c.get("name") == contract.CONTAINER_REPLICA), {})


def find_fetcher(status: dict[str, Any]) -> dict[str, Any]:
    """Return the status of the container that fetches the model or asks for it; empty without one."""
    statuses = [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]
    return next((c for c in statuses if c.get("name") == contract.CONTAINER_FETCH), {})


def read_last_line(ended: dict[str, Any]) -> str:
    """Return the last line of a container that has ended; empty without one."""
    lines = [line.strip() for line in ended.get("message", "").splitlines() if line.strip()]
    return lines[-1].removeprefix(FETCH_PREFIX) if lines else ""


def list_others(status: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the statuses of containers that others added to the pod, such as a mesh, in their order."""
    own = {contract.CONTAINER_REPLICA, contract.CONTAINER_FETCH}
    statuses = (*status.get("initContainerStatuses", []), *status.get("containerStatuses", []))
    return [one for one in statuses if one.get("name") not in own]


def find_state(container: dict[str, Any], state: str) -> dict[str, Any] | None:
    """Return a container's present state, if it is this one; else None."""
    found: dict[str, Any] | None = container.get("state", {}).get(state)
    return found


def find_last_end(container: dict[str, Any]) -> dict[str, Any] | None:
    """Return how the container's last run ended, before or after a restart; None if no run has ended."""
    last: dict[str, Any] | None = container.get("lastState", {}).get("terminated")
    return find_state(container, "terminated") or last
