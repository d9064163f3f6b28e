"""What a kubelet may say of a pod: of a Job's and of a replica's, at each point of its life."""

import json
from collections.abc import Callable
from typing import Any

from millrace_fit.facts import find_facts
from millrace_operator.api.conditions import render_time
from millrace_runtime import contract
from testing.checkpoints.models import LLAMA_8B, stored_of
from testing.world import crash_status, ready_status, resolver_status, unschedulable_status
from tests.operator.controller.schedule import COMMITS, EVICTED, TOLD

Status = dict[str, Any]
LARGE = LLAMA_8B | {"num_hidden_layers": 96}
"""Its weights are larger than an L4's memory, and smaller than an H100's."""
FACTS: dict[str, dict[str, Any] | None] = {
    "none": None,
    "of 8B": TOLD,
    "of a large one": json.loads(find_facts(LARGE, stored_of(LARGE)).to_json()),
}
GATED = "millrace fetch: acme/chat is gated"


def _tell(facts: str, revision: str | None = COMMITS[0]) -> str:
    told = {"numFiles": 3, "numBytes": 2**34, "facts": FACTS[facts], "revision": revision}
    return json.dumps({field: value for field, value in told.items() if value is not None})


def _run_fetcher(now: float) -> Status:
    running = {"running": {"startedAt": render_time(now)}}
    return {"phase": "Running", "containerStatuses": [{"name": contract.CONTAINER_FETCH, "state": running}]}


def _wait(reason: str) -> Status:
    waiting = {"waiting": {"reason": reason, "message": "it is not there"}}
    return {"phase": "Pending", "containerStatuses": [{"name": contract.CONTAINER_FETCH, "state": waiting}]}


def _fail_beside(status: Status) -> Status:
    """Return the status of a pod with a container of others that fails again and again."""
    back = {"waiting": {"reason": "CrashLoopBackOff"}}
    beside = {"name": "proxy", "state": back, "lastState": {"terminated": {"exitCode": 1}}}
    return {"phase": "Running", "containerStatuses": [*status["containerStatuses"], beside]}


LIVES: dict[str, Callable[[float], Status]] = {
    "new": lambda _: {},
    "without a node": lambda _: unschedulable_status(),
    "without an image": lambda _: _wait("ImagePullBackOff"),
    "running": _run_fetcher,
    "told": lambda _: resolver_status(_tell("of 8B")),
    "told of a large one": lambda _: resolver_status(_tell("of a large one")),
    "told another revision": lambda _: resolver_status(_tell("none", COMMITS[1])),
    "told no revision": lambda _: resolver_status(_tell("of 8B", None)),
    "told beside what fails": lambda _: _fail_beside(resolver_status(_tell("of 8B"))),
    "told before it failed": lambda _: {**resolver_status(_tell("of 8B")), **EVICTED},
    "told garbage": lambda _: resolver_status("words of another version"),
    "told a list": lambda _: resolver_status("[1]"),
    "failing": lambda _: resolver_status(GATED, code=1),
    "evicted": lambda _: EVICTED,
}
"""Of a Job's pod."""
ENDS = ("Complete", "Failed")


def _load(now: float) -> Status:
    running = {"running": {"startedAt": render_time(now)}}
    return {"containerStatuses": [{"name": contract.CONTAINER_REPLICA, "started": False, "state": running}]}


def _tire(now: float) -> Status:
    """Return the status of one that was Ready and is not heard from."""
    began, since = render_time(now - 60), render_time(now)
    running = {
        "name": contract.CONTAINER_REPLICA,
        "started": True,
        "state": {"running": {"startedAt": began}},
    }
    condition = {"type": "Ready", "status": "False", "lastTransitionTime": since}
    return {"conditions": [condition], "containerStatuses": [{**running, "ready": True}]}


def _arrive(now: float) -> Status:
    """Return the status of one that has just become Ready."""
    status = ready_status()
    status["conditions"][0]["lastTransitionTime"] = render_time(now)
    return status


def _fetch(now: float) -> Status:
    running = {"running": {"startedAt": render_time(now)}}
    return {"initContainerStatuses": [{"name": contract.CONTAINER_FETCH, "state": running}]}


STATES: dict[str, Callable[[float], Status]] = {
    "new": lambda _: {},
    "fetching": _fetch,
    "loading": _load,
    "ready": _arrive,
    "unheard": _tire,
    "without a node": lambda now: _date(unschedulable_status(), now),
    "out of memory": lambda _: crash_status(code=137),
    "bad model": lambda _: crash_status(code=contract.EXIT_BAD_MODEL),
    "bad settings": lambda _: crash_status(code=contract.EXIT_BAD_USAGE),
    "done": lambda _: {"phase": "Succeeded"},
    "failed": lambda now: _date(EVICTED, now),
}
"""Of a replica's pod."""


def _date(status: Status, now: float) -> Status:
    dated = [{**one, "lastTransitionTime": render_time(now)} for one in status.get("conditions", [])]
    return {**status, "startTime": render_time(now), "conditions": dated}
