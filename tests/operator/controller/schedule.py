"""What can happen to one service and its operator: each step is one that happens.

A user's edit, a write that fails, an operator that dies between two writes or acts beside another one, a plan
from an old view, a pod that ends, a full cluster, gateways with requests or without a word.
"""

import json
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from millrace_fit.facts import find_facts
from millrace_operator.api.annotations import REFRESH_ANNOTATION as REFRESH
from millrace_operator.api.annotations import ROLLOUT_ANNOTATION
from millrace_operator.kube.errors import ClusterError, ConflictError, RefusedError, TransientError
from millrace_operator.kube.kinds import CHILDREN, Kind, Obj
from millrace_operator.observed.snapshot import UNKNOWN_DEMAND, Advice, Demand, PodLoad
from millrace_runtime import contract
from testing.checkpoints.models import LLAMA_8B, stored_of
from testing.world import KEY, World, crash_status, ready_status

MOST_STEPS = 40
AUTOMATIC = {"mode": "Automatic", "minReplicas": 0, "maxReplicas": 4}
EXTERNAL = {"mode": "External", "minReplicas": 1, "maxReplicas": 1}
STARTS: dict[str, dict[str, Any]] = {
    "External": {"scaling": EXTERNAL, "replicas": 2},
    "Automatic": {"scaling": AUTOMATIC},
    "Fetched": {"scaling": EXTERNAL, "replicas": 2, "model": {"uri": "hf://acme/chat@main"}},
    "InClaim": {"scaling": EXTERNAL, "replicas": 2, "model": {"uri": "pvc://models/chat"}},
}
"""What a service begins as. One in mode Automatic rests while nobody asks, and one has a branch's model.

The model of one is in a claim, which a Job looks at for each revision.
"""
TOLD = json.loads(find_facts(LLAMA_8B, stored_of(LLAMA_8B)).to_json())
COMMITS = ("1" * 40, "2" * 40, "3" * 40)
ASKED = Demand(1, None)
WAYS: tuple[dict[str, Any], ...] = (
    {},
    {"strategy": "Replace"},
    {"rollback": "Never"},
    {"canary": {}},
    {"canary": {"replicas": "50%", "promotion": "Manual"}},
    {"strategy": "Replace", "canary": {"duration": "1m"}},
)
FAULTS: dict[str, ClusterError | None] = {
    "none": None,
    "transient": TransientError("504"),
    "conflict": ConflictError("409"),
    "refused": RefusedError("403"),
}
EVICTED = {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."}
UNREADY = {"conditions": [{"type": "Ready", "status": "False"}], "containerStatuses": []}
INDEX = st.integers(0, 9)
DEMANDS: dict[str, Callable[[float], Demand]] = {
    "unknown": lambda _: UNKNOWN_DEMAND,
    "asked": lambda _: ASKED,
    "idle": lambda now: Demand(0, now),
}
STEP = st.one_of(
    st.tuples(st.just("edit"), st.sampled_from([4, 8, 16])),
    st.tuples(st.just("scale"), st.integers(0, 4)),
    st.tuples(st.just("way"), st.sampled_from(range(len(WAYS)))),
    st.tuples(st.just("order"), st.sampled_from(["promote", "abort", "nonsense"])),
    st.tuples(st.just("delete"), INDEX),
    st.tuples(st.just("unlabel"), INDEX),
    st.tuples(st.just("tamper"), INDEX),
    st.tuples(st.just("crash"), INDEX),
    st.tuples(st.just("evict"), INDEX),
    st.tuples(st.just("unready"), INDEX),
    st.tuples(st.just("nodes"), st.booleans()),
    st.tuples(st.just("room"), st.one_of(st.none(), st.integers(0, 5))),
    st.tuples(st.just("quota"), st.one_of(st.none(), st.integers(0, 5))),
    st.tuples(st.just("break"), st.booleans()),
    st.tuples(st.just("fail"), st.lists(st.sampled_from(list(FAULTS)), min_size=1, max_size=6)),
    st.tuples(st.just("die"), st.integers(0, 6)),
    st.tuples(st.just("stale"), st.integers(1, 3)),
    st.tuples(st.just("rival"), st.integers(0, 6)),
    st.tuples(st.just("busy"), st.tuples(INDEX, st.integers(0, 2), st.booleans())),
    st.tuples(st.just("silence"), st.booleans()),
    st.tuples(st.just("demand"), st.sampled_from(list(DEMANDS))),
    st.tuples(st.just("branch"), st.one_of(st.none(), st.sampled_from(COMMITS))),
    st.tuples(st.just("refresh"), st.integers(1, 3)),
    st.tuples(st.just("look"), st.booleans()),
    st.tuples(st.just("advice"), st.one_of(st.none(), st.integers(1, 4))),
    st.tuples(st.just("wait"), st.sampled_from([1.0, 61.0, 400.0, 2000.0, 9000.0])),
    st.tuples(st.just("plan"), st.integers(1, 3)),
    st.tuples(st.just("controllers"), st.integers(1, 3)),
)
SCHEDULES = st.lists(STEP, min_size=5, max_size=MOST_STEPS)


class Schedule:
    """One service, and what happens to it."""

    def __init__(self, start: str) -> None:
        self.is_automatic = start == "Automatic"
        self.is_fetched = start == "Fetched"
        self.world = World(**STARTS[start])
        self.world.model_revision = COMMITS[0]
        self.world.put_claim("models")

    async def take(self, step: tuple[str, Any]) -> None:
        name, value = step
        found = getattr(self, f"_{name}")(value)
        if found is not None:
            await found

    def _edit(self, size: int) -> None:
        self.world.edit(engine={"maxSequences": size})

    def _scale(self, count: int) -> None:
        if self.is_automatic:
            self.world.edit(scaling={**AUTOMATIC, "minReplicas": count})
        else:
            self.world.edit(replicas=count)

    def _way(self, number: int) -> None:
        self.world.edit(rollout=WAYS[number])

    def _order(self, action: str) -> None:
        self._annotate(f"{action} {self.world.status.get('updateRevision', 'abc')}")

    def _annotate(self, text: str | None, name: str = ROLLOUT_ANNOTATION) -> None:
        metadata = {
            key: value for key, value in self.world.service["metadata"].items() if key != "annotations"
        }
        beside = {} if text is None else {"annotations": {name: text}}
        self.world.cluster.put({**self.world.service, "metadata": {**metadata, **beside}})

    def _delete(self, index: int) -> None:
        if child := pick(self._children(), index):
            self.world.cluster.remove(_kind_of(child), KEY.namespace, child["metadata"]["name"])

    def _unlabel(self, index: int) -> None:
        if child := pick(self._children(), index):
            labels = {
                name: value
                for name, value in child["metadata"]["labels"].items()
                if name != contract.LABEL_SERVICE
            }
            self.world.cluster.put({**child, "metadata": {**child["metadata"], "labels": labels}})

    def _tamper(self, index: int) -> None:
        if deployment := pick(self.world.objects("Deployment"), index):
            self.world.cluster.put({**deployment, "spec": {**deployment["spec"], "replicas": index % 5}})

    def _crash(self, index: int) -> None:
        self._set_pod(index, crash_status())

    def _evict(self, index: int) -> None:
        self._set_pod(index, EVICTED)

    def _unready(self, index: int) -> None:
        self._set_pod(index, UNREADY)

    def _set_pod(self, index: int, status: dict[str, Any]) -> None:
        if pod := pick(self.world.pods(), index):
            self.world.cluster.put({**pod, "status": status})

    def _nodes(self, are_lost: bool) -> None:  # noqa: FBT001  a step's value
        self.world.are_nodes_lost = are_lost

    def _room(self, capacity: int | None) -> None:
        self.world.capacity = capacity

    def _quota(self, count: int | None) -> None:
        self.world.quota = count

    def _break(self, is_broken: bool) -> None:  # noqa: FBT001  a step's value
        self.world.broken.clear()
        if is_broken and "updateRevision" in self.world.status:
            self.world.broken[self.world.status["updateRevision"]] = crash_status()

    def _fail(self, names: list[str]) -> None:
        self.world.cluster.faults.extend(FAULTS[name] for name in names)

    async def _die(self, num_writes: int) -> None:
        """Let the operator die after so many writes, and another one begin."""
        await self._plan_until(num_writes)
        self.world.restart_operator()

    async def _plan_until(self, num_writes: int) -> None:
        """Plan once, and come no further than so many writes."""
        self.world.cluster.faults.clear()
        self.world.cluster.faults.extend([*[None] * num_writes, *[TransientError("it died")] * 20])
        await self._plan(1)
        self.world.cluster.faults.clear()

    async def _stale(self, times: int) -> None:
        """Plan from what was seen before."""
        for _ in range(times):
            await _try(self.world.reconcile(is_stale=True))

    async def _rival(self, num_writes: int) -> None:
        """Let another operator take over, and the one before act on its last view after so many writes."""
        world = self.world
        before, cache, watched = world.reconciler, world.cache, world._watched
        world.restart_operator()
        await self._plan_until(num_writes)
        after = world.reconciler, world.cache, world._watched
        world.reconciler, world.cache, world._watched = before, cache, watched
        await self._stale(1)
        world.reconciler, world.cache, world._watched = after

    def _busy(self, load: tuple[int, int, bool]) -> None:
        """Let gateways have requests at a replica, and have seen its mark or not."""
        index, in_flight, has_left = load
        if pod := pick(self.world.pods(), index):
            told = self.world.loads or {}
            self.world.loads = {**told, pod["metadata"]["uid"]: PodLoad(in_flight, has_left)}

    def _silence(self, is_silent: bool) -> None:  # noqa: FBT001  a step's value
        self.world.loads = None if is_silent else {}

    def _demand(self, name: str) -> None:
        self.world.demand = DEMANDS[name](self.world.now)

    def _advice(self, count: int | None) -> None:
        told = None if count is None else Advice(count, "Steady", "load", "forecast", is_held=False)
        self.world.advice = told

    def _branch(self, commit: str | None) -> None:
        """Let the branch move on, or its source be away."""
        self.world.model_revision = commit

    def _refresh(self, number: int) -> None:
        """Have the source asked, as the plugin does."""
        self._annotate(f"{self.world.status.get('updateRevision', 'abc')} at {number}", REFRESH)

    def _look(self, is_told: bool) -> None:  # noqa: FBT001  a step's value
        self.world.model_facts = TOLD if is_told else None

    def _wait(self, seconds: float) -> None:
        self.world.now += seconds

    async def _plan(self, times: int) -> None:
        for _ in range(times):
            await _try(self.world.reconcile())

    def _controllers(self, times: int) -> None:
        for _ in range(times):
            self.world.run_controllers()

    def _children(self) -> list[Obj]:
        return [child for kind in CHILDREN for child in self.world.objects(kind.kind)]

    async def mend(self) -> None:
        """Let all faults end, and the cluster come to rest."""
        world = self.world
        world.cluster.faults.clear()
        world.capacity = world.quota = None
        world.are_nodes_lost = False
        world.broken.clear()
        world.loads = {}
        world.model_revision = COMMITS[-1]
        for pod in world.pods():
            if pod["status"] != ready_status():
                world.cluster.put({**pod, "status": {}})
        for _ in range(3):
            await world.settle()
            world.now += 4000

    async def end(self) -> None:
        """Let the owner ask for three replicas of one last revision, without any canary, and nobody rest."""
        self._annotate(None)
        count = (
            {"scaling": {**AUTOMATIC, "minReplicas": 3, "maxReplicas": 3}}
            if self.is_automatic
            else {"replicas": 3}
        )
        self.world.advice, self.world.demand = None, ASKED
        self.world.edit(engine={"maxSequences": 32}, rollout={}, **count)
        await self.mend()


async def _try(act: Any) -> None:
    try:
        await act
    except ClusterError:
        return


def pick(objects: list[Obj], index: int) -> Obj | None:
    """Return one of the objects; None where there is none."""
    return objects[index % len(objects)] if objects else None


def _kind_of(obj: Obj) -> Kind:
    return next(kind for kind in CHILDREN if kind.kind == obj["kind"])
