"""What may be around a service, beside what happens to it in `schedule.py`; `surroundings.py` draws it.

Nothing of it need end. What the operator sees in the midst of it is an `Instant`.
"""

from millrace_fit.accelerators import LABEL_PRODUCT
from millrace_operator.api.annotations import PIN_ANNOTATION as PIN
from millrace_operator.api.conditions import render_time
from millrace_operator.api.types import Spec
from millrace_operator.kube.kinds import (
    CHILDREN,
    JOB,
    NODE,
    PERSISTENT_VOLUME_CLAIM,
    POD,
    Obj,
    ObjectKey,
)
from millrace_operator.model.claims import read_claim
from millrace_operator.observed.pods import DELETION_COST
from millrace_operator.observed.snapshot import (
    Advice,
    Claim,
    Fetched,
    GatewayReports,
    ModelReports,
    Nodes,
    Obstacles,
    PodLoad,
    Rival,
    Snapshot,
)
from millrace_operator.render.child import APPLIED
from millrace_operator.rollout.requested_revision import find_awaited
from millrace_runtime import contract
from testing.world import KEY, make_pod, ready_status
from tests.operator.controller.instant import DELETIONS, WORDS, Instant, note_look_time
from tests.operator.controller.lives import FACTS, LIVES, STATES
from tests.operator.controller.schedule import Schedule, pick
from tests.operator.controller.surroundings import CLAIMS, DEPARTURES, MODELS, RESOURCES, SCALINGS


class Circumstances(Schedule):
    """One service, what happens to it, and what is around it."""

    def __init__(self, start: str, model: str | None, resources: str, facts: str) -> None:
        super().__init__(start)
        self.is_fetched = False  # the model is chosen here
        self.is_blind = False
        self.rivals: tuple[Rival, ...] = ()
        self.refused: frozenset[str] = frozenset()
        if model is not None:
            self._model(model)
        self._resources(resources)
        self._facts(facts)
        for is_kept, state in ((False, "shared"), (True, "of the chart")):
            self._claim((is_kept, state))

    def see(self) -> Instant:
        """Return what an operator that knows everything sees now."""
        world = self.world
        world.observe()
        pods = world.objects(POD.kind)
        replicas = tuple(pod for pod in pods if not _is_of_job(pod))
        children = tuple(child for kind in CHILDREN for child in world.objects(kind.kind))
        snapshot = Snapshot(
            service=world.service,
            children=children,
            pods=replicas,
            job_pods=tuple(filter(_is_of_job, pods)),
            advice=world._advise(),
            obstacles=Obstacles(
                conflicts=world.reconciler._lookups._conflicts.get(KEY, frozenset()),
                refusals=world.reconciler._refusals.recall(KEY, world.now),
                rivals=self.rivals,
                is_tried=KEY in world.reconciler._tried,
            ),
            gateways=GatewayReports(
                loads=world._read_loads(pod["metadata"]["uid"] for pod in replicas), demand=world.demand
            ),
            model=ModelReports(
                claim=None if self.is_blind else self._read_claim(children),
                looking_since=self._find_look_time(children),
                fetched=world.fetched,
                replicas=world.replicas,
            ),
            nodes=Nodes(departures=dict(world.cache.departures()), gpus=dict(world.cache.gpu_nodes())),
            worded_at=world.reconciler._worded.get(KEY),
        )
        return Instant(note_look_time(snapshot, world.now), world.now, self.refused)

    def _read_claim(self, children: tuple[Obj, ...]) -> Claim | None:
        spec = Spec.model_validate(self.world.service["spec"])
        awaited = find_awaited(self.world.service, spec, children)
        name = spec.model.cache.claim or (awaited and awaited.claim)
        if name is None:
            return None
        claim = self.world.cluster.objects.get(ObjectKey(PERSISTENT_VOLUME_CLAIM.kind, KEY.namespace, name))
        return read_claim(KEY.namespace, name, claim)

    def _find_look_time(self, children: tuple[Obj, ...]) -> float | None:
        """Return since when the operator has waited for the look that it waits for now."""
        spec = Spec.model_validate(self.world.service["spec"])
        awaited = find_awaited(self.world.service, spec, children)
        revision, since = self.world.reconciler._lookups._awaited.get(KEY, ("", 0.0))
        return since if awaited is not None and awaited.revision == revision else None

    async def begin(self, *, is_settled: bool) -> None:
        """Let the service be served, or only just be seen."""
        if is_settled:
            await self.world.settle()
        else:
            await self._plan(2)

    async def _revise(self, size: int) -> None:
        """Ask for another revision, and let the operator see it while no controller has moved."""
        self._edit(size)
        await self._plan(2)

    def _model(self, name: str) -> None:
        self.world.edit(model=MODELS[name])

    def _resources(self, name: str) -> None:
        self.world.edit(resources=RESOURCES[name])

    def _selector(self, product: str) -> None:
        self.world.edit(pod={"nodeSelector": {LABEL_PRODUCT: product}} if product else {})

    def _scaling(self, name: str) -> None:
        self.is_automatic = name == "Automatic"
        self.world.edit(**SCALINGS[name])

    def _facts(self, name: str) -> None:
        self.world.model_facts = FACTS[name]

    def _fill(self, is_filled: bool) -> None:  # noqa: FBT001  a step's value
        self.world.is_filled = is_filled

    def _claim(self, claim: tuple[bool, str | None]) -> None:
        """Make the claim of models, or the one that nodes keep models in; None deletes it."""
        is_kept, state = claim
        name = contract.CLAIM_KEPT if is_kept else "models"
        if state is None:
            self.world.cluster.remove(PERSISTENT_VOLUME_CLAIM, KEY.namespace, name)
            return
        modes, volume, phase = CLAIMS[state]
        head = {"apiVersion": "v1", "kind": PERSISTENT_VOLUME_CLAIM.kind}
        metadata = {"namespace": KEY.namespace, "name": name}
        spec = {"accessModes": modes, "volumeName": volume}
        self.world.cluster.put({**head, "metadata": metadata, "spec": spec, "status": {"phase": phase}})

    def _blind(self, is_blind: bool) -> None:  # noqa: FBT001  a step's value
        """Let the API server show no claim."""
        self.is_blind = is_blind

    def _node(self, node: tuple[str, str, str | None]) -> None:
        """Add a node with GPUs, or change it; without a way to depart it goes."""
        name, product, departure = node
        if departure is None:
            self.world.cluster.remove(NODE, "", name)
            return
        metadata = {"name": name, "uid": name, "labels": {LABEL_PRODUCT: product} if product else {}}
        status = {"allocatable": {"cpu": "64", "nvidia.com/gpu": "8"}}
        spec = DEPARTURES[departure]
        self.world.cluster.put({"kind": NODE.kind, "metadata": metadata, "spec": spec, "status": status})

    def _empty(self, place: tuple[int, str, str]) -> None:
        """Let a replica be on a node, and that one be emptied."""
        index, node, departure = place
        self._node((node, "", departure))
        if pod := pick(self.world.pods(), index):
            self.world.cluster.put({**pod, "spec": {**pod.get("spec", {}), "nodeName": node}})

    def _life(self, life: tuple[int, str]) -> None:
        """Bring a Job's pod to a point of its life; it is made where there is none."""
        index, name = life
        if job := pick(self._jobs(), index):
            pods = self._pods_of(job)
            pod = pods[0] if pods else self.world._make_job_pod(job)
            self.world.cluster.put({**pod, "status": LIVES[name](self.world.now)})

    def _beside(self, life: tuple[int, str]) -> None:
        """Make one more pod of a Job."""
        index, name = life
        if job := pick(self._jobs(), index):
            pod = self.world._make_job_pod(job)
            self.world.cluster.put({**pod, "status": LIVES[name](self.world.now)})

    def _end(self, end: tuple[int, str]) -> None:
        index, name = end
        if job := pick(self._jobs(), index):
            condition = {"type": name, "status": "True", "lastTransitionTime": render_time(self.world.now)}
            self.world.cluster.put({**job, "status": {"conditions": [condition]}})

    def _forget(self, index: int) -> None:
        """Delete the pods of a Job, as a cleaner of the cluster does."""
        if job := pick(self._jobs(), index):
            for pod in self._pods_of(job):
                self.world.cluster.remove(POD, KEY.namespace, pod["metadata"]["name"])

    def _leave(self, index: int) -> None:
        """Let a Job, or a pod of one, be on its way out."""
        leaving = {"deletionTimestamp": render_time(self.world.now)}
        if one := pick([*self._jobs(), *filter(_is_of_job, self.world.objects(POD.kind))], index):
            self.world.cluster.put({**one, "metadata": {**one["metadata"], **leaving}})

    def _age(self, index: int) -> None:
        """Let a Job be one that another version of the operator made an hour ago."""
        if job := pick(self._jobs(), index):
            annotations = {**job["metadata"].get("annotations", {}), APPLIED: "0" * 16}
            made = {"creationTimestamp": render_time(self.world.now - 3600), "annotations": annotations}
            self.world.cluster.put({**job, "metadata": {**job["metadata"], **made}})

    def _usurp(self, index: int) -> None:
        """Let a child be somebody else's."""
        if child := pick(self._children(), index):
            self.world.cluster.put({**child, "metadata": {**child["metadata"], "ownerReferences": []}})

    def _far(self, far: tuple[int, int]) -> None:
        """Let a pod tell how far it is with its model."""
        index, quarters = far
        if pod := pick(self.world.objects(POD.kind), index):
            fetched = Fetched(2**34, quarters * 2**32, 2**27)
            self.world.fetched = {**self.world.fetched, pod["metadata"]["name"]: fetched}

    def _state(self, state: tuple[int, str]) -> None:
        index, name = state
        self._set_pod(index, STATES[name](self.world.now))

    def _mark(self, index: int) -> None:
        """Let an older operator have marked a replica."""
        if pod := pick(self.world.pods(), index):
            annotations = {**pod["metadata"].get("annotations", {}), DELETION_COST: "-100"}
            self.world.cluster.put({**pod, "metadata": {**pod["metadata"], "annotations": annotations}})

    def _unrouted(self, index: int) -> None:
        """Let gateways not know a replica yet."""
        if pod := pick(self.world.pods(), index):
            load = PodLoad(0, has_left=False, is_routable=False)
            self.world.loads = {**(self.world.loads or {}), pod["metadata"]["uid"]: load}

    def _stranger(self, index: int) -> None:
        """Add a pod of a revision that nobody knows."""
        self.world.cluster.put(make_pod(f"chat-{index}", "feedfeed", **ready_status()))

    def _hold(self, count: int) -> None:
        self.world.advice = Advice(count, "Held", "no signals", "signals", is_held=True)

    def _pin(self, text: str) -> None:
        metadata = self.world.service["metadata"]
        annotations = {**metadata.get("annotations", {}), PIN: text}
        annotations = {name: value for name, value in annotations.items() if value}
        self.world.cluster.put({**self.world.service, "metadata": {**metadata, "annotations": annotations}})

    def _autoscaler(self, is_there: bool) -> None:  # noqa: FBT001  a step's value
        names = [one["metadata"]["name"] for one in self.world.objects("Deployment")]
        self.rivals = (Rival("theirs", names[0]),) if is_there and names else ()

    def _refuse(self, kinds: list[str]) -> None:
        self.refused = frozenset(kinds)
        cluster, words = self.world.cluster, {POD.kind: "annotate", DELETIONS: "delete"}
        cluster.refuse = lambda obj: WORDS if obj["kind"] in kinds else None
        cluster.refuse_other = {verb: WORDS for kind, verb in words.items() if kind in kinds}

    def _jobs(self) -> list[Obj]:
        return self.world.objects(JOB.kind)

    def _pods_of(self, job: Obj) -> list[Obj]:
        uid = job["metadata"]["uid"]
        owned = ((pod, pod["metadata"].get("ownerReferences", [])) for pod in self.world.objects(POD.kind))
        return [pod for pod, owners in owned if any(owner["uid"] == uid for owner in owners)]


def _is_of_job(pod: Obj) -> bool:
    component = pod["metadata"]["labels"].get(contract.LABEL_COMPONENT)
    return component in (contract.COMPONENT_RESOLVER, contract.COMPONENT_FILLER)
