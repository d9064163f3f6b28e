"""One container as a PodStatus shows it. Pure."""

from typing import Any

from e2e.cluster.nodes.container_record import ContainerRecord, Running, Terminated, Waiting
from e2e.cluster.nodes.events import timestamp

Object = dict[str, Any]


def render_container(record: ContainerRecord) -> Object:
    """Return the status of a main container."""
    return {
        "name": record.name,
        "image": record.image,
        "imageID": f"process://{record.image}" if record.container_id else "",
        "containerID": record.container_id,
        "restartCount": record.restart_count,
        "ready": record.is_ready,
        "started": record.is_started,
        "state": _render_state(record.state),
        "lastState": _render_state(record.last) if record.last else {},
    }


def render_init_container(record: ContainerRecord) -> Object:
    """Return the status of an init container, which is ready once it has ended well."""
    is_done = isinstance(record.state, Terminated) and record.state.exit_code == 0
    return render_container(record) | {"ready": is_done}


def _render_state(state: Waiting | Running | Terminated) -> Object:
    if isinstance(state, Waiting):
        return {"waiting": {"reason": state.reason, "message": state.message}}
    if isinstance(state, Running):
        return {"running": {"startedAt": timestamp(state.since)}}
    return {
        "terminated": {
            "exitCode": state.exit_code,
            "reason": state.reason,
            "message": state.message,
            "startedAt": timestamp(state.started),
            "finishedAt": timestamp(state.finished),
            "containerID": state.container_id,
        }
    }


def observed_restarts(pod: Object, name: str) -> int:
    """Return how often a container was started, as the API server knew it before this node process began."""
    seen = pod.get("status", {}).get("containerStatuses", ())
    found: Object = next((each for each in seen if each["name"] == name), {})
    return int(found.get("restartCount", 0)) + (1 if found.get("containerID") else 0)
