"""Each figure, measured on a control plane with its services."""

import asyncio
import math
import signal
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import Any

from benchmarks.convergence.api import Api, Object, run_all
from benchmarks.convergence.objects import (
    CHILD_SERVICES,
    DEPLOYMENTS,
    NAMESPACE,
    PODS,
    READY,
    SERVICES,
    make_pod,
    make_strangers,
    name_service,
)
from benchmarks.convergence.operators import Operator
from e2e.cluster.api_reader import is_observed

LOOK_SECONDS = 0.02
ASK_SECONDS = 0.25
"""Between two looks at an operator's metrics: it writes them of every service, which takes it 0.1 s."""
COUNT_SECONDS = 1.0
"""Between two looks at the API server's own count: one takes 57 ms of its time and 16 ms of ours."""
QUIET_SECONDS = 4.0
"""Without a write, until the operator counts as done."""
IDLE_SECONDS = 90.0
"""One full collection of garbage takes as long as all else in 15 s: a short look may have one, or none."""
EDITS_QUIET_SECONDS = 10.0
"""An edit may wait for 5 s."""
START_SECONDS = 120.0
NUM_STARTS = 3
"""Of which the median counts: what a start holds differs by 5 % from one to the next; a hand-over, by 1 s."""
STANDBY_SECONDS = 15.0
"""For a standby's first list."""
CONVERGE_SECONDS = 1800.0
NUM_EDITS = 500
NUM_RESTORED = 100
NUM_PODS = 50
NUM_STRANGERS = 10_000


class BenchmarkError(RuntimeError):
    """Something did not happen in time."""


@dataclass(frozen=True)
class Rest:
    """An operator with nothing to do."""

    writes: int
    cpu_percent: float
    """Of one core."""


async def wait_for(what: str, is_so: Callable[[], Any], seconds: float, pause: float = LOOK_SECONDS) -> None:
    """Look again and again. Raises BenchmarkError."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        found = is_so()
        if await found if asyncio.iscoroutine(found) else found:
            return
        await asyncio.sleep(pause)
    raise BenchmarkError(f"not in {seconds:g} s: {what}")


async def find_last_write(api: Api, seconds: float) -> float:
    """Return when the last write was seen, after QUIET_SECONDS without one. Raises BenchmarkError."""
    until = time.monotonic() + seconds
    count, last = await api.count_writes(), time.monotonic()
    while time.monotonic() < until:
        await asyncio.sleep(COUNT_SECONDS)
        found = await api.count_writes()
        if found != count:
            count, last = found, time.monotonic()
        elif time.monotonic() - last >= QUIET_SECONDS:
            return last
    raise BenchmarkError(f"still writing after {seconds:g} s")


async def measure_convergence(api: Api, operator: Operator, count: int) -> dict[str, float]:
    """Return what it takes to give new services all of their children and a status."""
    await wait_for("a leader", lambda: operator.is_leader, START_SECONDS, ASK_SECONDS)
    before, cpu, began = await api.count_writes(), operator.cpu_seconds, time.monotonic()
    seconds = await find_last_write(api, CONVERGE_SECONDS) - began
    writes, cpu = await api.count_writes() - before, operator.cpu_seconds - cpu
    missing = [one["metadata"]["name"] for one in await api.list(SERVICES) if not is_observed(one)]
    if missing:
        raise BenchmarkError(f"{len(missing)} services have no status of their spec: {missing[:3]}")
    return {
        "writes_per_service": writes / count,
        "writes_per_second": writes / seconds,
        "cpu_ms_per_write": 1000 * cpu / writes,
        "converged_per_second": count / seconds,
        "rss_mb": operator.rss_mb,
    }


async def measure_rest(api: Api, operator: Operator) -> Rest:
    """Return what an operator does that has nothing to do."""
    before, cpu = await api.count_writes(), operator.cpu_seconds
    await asyncio.sleep(IDLE_SECONDS)
    used = operator.cpu_seconds - cpu
    return Rest(await api.count_writes() - before, 100 * used / IDLE_SECONDS)


async def measure_edits(api: Api, operator: Operator) -> dict[str, float]:
    """Return its reconciles for many edits of one service's spec, as fast as they are answered.

    How long they took belongs to it: the operator lets none wait for more than 5 s.

    The operator has to log each reconcile.
    """
    name = f"{NAMESPACE}/{name_service(0)}"
    before, path = operator.count_reconciles(name), f"{SERVICES}/{name_service(0)}"
    began = time.monotonic()
    for number in range(NUM_EDITS):
        deadline = {"progressDeadline": f"{31 - number % 2}m"}  # the last one is the default again
        await api.send("PATCH", path, {"spec": {"rollout": deadline}})
    seconds = time.monotonic() - began
    await asyncio.sleep(EDITS_QUIET_SECONDS)
    return {
        "reconciles_for_500_edits": operator.count_reconciles(name) - before,
        "seconds_of_500_edits": seconds,
    }


async def measure_restores(api: Api) -> float:
    """Return the P99 of the seconds until a deleted child is back."""
    seconds = []
    for number in range(NUM_RESTORED):
        path = f"{CHILD_SERVICES}/{name_service(number)}-replicas"
        uid = (await api.send("GET", path))["metadata"]["uid"]
        began = time.monotonic()
        await api.send("DELETE", path)

        async def is_back(path: str = path, uid: str = uid) -> bool:
            found = await api.get(path)
            return found is not None and found["metadata"]["uid"] != uid

        await wait_for("a child that was deleted", is_back, 60)
        seconds.append(time.monotonic() - began)
    return find_percentile(seconds, 99)


async def measure_status_lag(api: Api) -> float:
    """Return the P99 of the seconds from a pod's Ready to its count in the service's status."""
    seconds = []
    for number in range(NUM_PODS):
        path = f"{SERVICES}/{name_service(number)}"
        pod = make_pod(await api.send("GET", path))
        await api.send("POST", PODS, pod)
        began = time.monotonic()
        await mark_ready(api, pod)
        await wait_for("a ready replica", lambda path=path: has_ready(api, path), 60)  # type: ignore[misc]
        seconds.append(time.monotonic() - began)
    return find_percentile(seconds, 99)


async def mark_ready(api: Api, pod: Object) -> None:
    """Tell of a pod what its kubelet would."""
    await api.send("PATCH", f"{PODS}/{pod['metadata']['name']}/status", READY, "strategic-merge")


async def add_pods(api: Api) -> None:
    """Give each service its pod that has none: then all of them serve, and nothing is left to do."""
    there = {pod["metadata"]["name"] for pod in await api.list(PODS)}
    pods = [
        pod
        for service in await api.list(SERVICES)
        if (pod := make_pod(service))["metadata"]["name"] not in there
    ]
    await api.create_all(PODS, pods)
    await run_all(lambda pod: mark_ready(api, pod), pods)


async def has_ready(api: Api, path: str) -> bool:
    """Whether a service's status counts a ready replica."""
    found = await api.send("GET", path)
    return bool(found.get("status", {}).get("readyReplicas"))


async def measure_start(operator: Operator) -> float:
    """Return the seconds from a process's start to its first reconcile, the Lease being free."""
    await wait_for("a first reconcile", lambda: operator.num_reconciles > 0, START_SECONDS, ASK_SECONDS)
    return time.monotonic() - operator.began


async def settle(operator: Operator) -> None:
    """Wait until every service has been looked at."""
    await wait_for(
        "an empty queue", lambda: operator.num_reconciles and not operator.num_waiting, 300, ASK_SECONDS
    )
    await asyncio.sleep(QUIET_SECONDS)


async def measure_memory(start: Callable[[], AbstractContextManager[Operator]]) -> float:
    """Return what an operator holds that has looked at every service, in 10⁶ bytes; the median of starts."""
    found = []
    for _ in range(NUM_STARTS):
        with start() as operator:
            await measure_start(operator)
            await settle(operator)
            found.append(operator.rss_mb)
    return statistics.median(found)


async def measure_failover(leader: Operator, other: Operator, number: signal.Signals) -> float:
    """Return the seconds from a leader's end to the other one's leadership."""
    await wait_for("the leader", lambda: leader.is_leader, START_SECONDS, ASK_SECONDS)
    await wait_for("the other one", lambda: other.is_up, START_SECONDS, ASK_SECONDS)
    await asyncio.sleep(STANDBY_SECONDS)
    began = time.monotonic()
    leader.end(number)
    await wait_for("another leader", lambda: other.is_leader, START_SECONDS, ASK_SECONDS)
    return time.monotonic() - began


async def measure_handovers(leader: Operator, start: Callable[[], AbstractContextManager[Operator]]) -> float:
    """Return the seconds from a leader's stop to the next one's leadership; the median of NUM_STARTS."""
    found = []
    with ExitStack() as operators:
        for _ in range(NUM_STARTS):
            other = operators.enter_context(start())
            found.append(await measure_failover(leader, other, signal.SIGTERM))
            leader = other
    return statistics.median(found)


async def add_strangers(api: Api, count: int) -> None:
    """Create objects of a kind that the operator watches, of somebody else."""
    await api.create_all(DEPLOYMENTS, make_strangers(count))


def find_percentile(values: Sequence[float], percent: int) -> float:
    """Return the smallest value that so many percent of them do not exceed."""
    return sorted(values)[math.ceil(len(values) * percent / 100) - 1]


def compare_cpu(before: Rest, after: Rest) -> float:
    """Return how many times the CPU time at rest an operator takes."""
    return after.cpu_percent / max(before.cpu_percent, 0.1)
