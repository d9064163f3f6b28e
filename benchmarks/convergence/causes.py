"""How long it takes until a service's status says why its pod does not serve, in the pod's own words."""

import time
from typing import Any, NamedTuple

from benchmarks.convergence.api import Api, Object, run_all
from benchmarks.convergence.measures import NUM_PODS, find_percentile, mark_ready, wait_for
from benchmarks.convergence.objects import PODS, SERVICES, make_pod, name_service
from millrace_runtime import contract

NUM_EACH = 10
BEGAN, LOST = "2026-01-01T00:01:00Z", "2026-01-01T00:09:00Z"
PLACED = {"type": "PodScheduled", "status": "True"}


class Trouble(NamedTuple):
    """What a kubelet or the scheduler writes into a pod's status, and what a user must read of it."""

    status: Object
    words: str


def container(*, is_started: bool = False, **fields: Any) -> Object:
    """Return a replica's container that does not serve."""
    replica = {"name": contract.CONTAINER_REPLICA, "image": "replica", "imageID": "", "ready": False}
    return {**replica, "started": is_started, "restartCount": 3, **fields}


def wait(reason: str, message: str, **fields: Any) -> Object:
    """Return the status of a pod whose container waits."""
    state = {"waiting": {"reason": reason, "message": message}}
    return {
        "phase": "Pending",
        "conditions": [PLACED],
        "containerStatuses": [container(state=state, **fields)],
    }


def end(code: int, reason: str, message: str) -> Object:
    """Return the status of a pod whose container ended again and again."""
    ended = {"terminated": {"exitCode": code, "reason": reason, "message": message}}
    return wait("CrashLoopBackOff", "back-off 5m0s restarting failed container", lastState=ended)


NO_NODE = "0/12 nodes are available: 4 Insufficient cpu, 8 Insufficient nvidia.com/gpu."
UNREADY = "containers with unready status: [replica]"
TROUBLES = (
    Trouble(
        wait("ImagePullBackOff", "Back-off pulling image replica:7"), "ImagePullBackOff: Back-off pulling"
    ),
    Trouble(
        {
            "phase": "Pending",
            "conditions": [
                {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": NO_NODE}
            ],
        },
        NO_NODE,
    ),
    Trouble(end(137, "OOMKilled", "loading layer 17 of 32\n"), "OOMKilled, exit status 137"),
    Trouble(end(134, "Error", "step 7\nCUDA error: an illegal memory access\n"), "CUDA error: an illegal"),
    Trouble(
        {
            "phase": "Running",
            "conditions": [
                PLACED,
                {"type": "Ready", "status": "False", "lastTransitionTime": LOST, "message": UNREADY},
            ],
            "containerStatuses": [container(is_started=True, state={"running": {"startedAt": BEGAN}})],
        },
        f"its readiness probe fails: {UNREADY}",
    ),
)
"""In the order in which they take turns."""


async def measure_cause_lag(api: Api) -> float:
    """Return the P99 of the seconds from a pod's trouble to its words in the service's status.

    The pods are of services that `measure_status_lag` leaves without one. In the end they are marked Ready.
    """
    seconds, pods = [], []
    for number in range(NUM_EACH * len(TROUBLES)):
        path, trouble = f"{SERVICES}/{name_service(NUM_PODS + number)}", TROUBLES[number % len(TROUBLES)]
        pod = make_pod(await api.send("GET", path))
        await api.send("POST", PODS, pod)
        name = pod["metadata"]["name"]
        began = time.monotonic()
        await api.send("PATCH", f"{PODS}/{name}/status", {"status": trouble.status}, "strategic-merge")

        async def is_reported(path: str = path, name: str = name, words: str = trouble.words) -> bool:
            return reports(await api.send("GET", path), name, words)

        await wait_for(f"{trouble.words!r} of {name}", is_reported, 60)
        seconds.append(time.monotonic() - began)
        pods.append(pod)
    await run_all(lambda pod: mark_ready(api, pod), pods)
    return find_percentile(seconds, 99)


def reports(service: Object, pod: str, words: str) -> bool:
    """Whether a condition names the pod, with these words."""
    messages = [one["message"] for one in service.get("status", {}).get("conditions", [])]
    return any(pod in message and words in message for message in messages)
