"""A cluster's controllers in a few lines around the fake API server: Deployments get their pods."""

import copy
import itertools
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from millrace_fit.accelerators import LABEL_PRODUCT
from millrace_operator.api.conditions import render_time
from millrace_operator.api.model_types import ReplicaStatus
from millrace_operator.controller.cache import Cache
from millrace_operator.controller.queue import WorkQueue
from millrace_operator.controller.reconcile import Reconciler
from millrace_operator.controller.watch_recorder import WatchRecorder
from millrace_operator.controller.worker import Outcome
from millrace_operator.kube.errors import ClusterError
from millrace_operator.kube.fake import FakeCluster
from millrace_operator.kube.kinds import (
    BY_NAME,
    CHILDREN,
    CONTROLLER_REVISION,
    DEPLOYMENT,
    INFERENCE_SERVICE,
    NODE,
    PERSISTENT_VOLUME_CLAIM,
    POD,
    WATCHED,
    Obj,
    ObjectKey,
    ServiceKey,
)
from millrace_operator.observed.pods import DELETION_COST
from millrace_operator.observed.snapshot import UNKNOWN_DEMAND, Advice, Fetched, GatewayKey, PodLoad
from millrace_operator.render.settings import RenderSettings
from millrace_runtime import contract

KEY = ServiceKey("shop", "chat")
BEGAN = 1767225600.0
"""2026-01-01, in seconds since 1970."""
GRACE_SECONDS = 630.0
QUOTA = 'pods "chat-1" is forbidden: exceeded quota: gpus, requested: requests.nvidia.com/gpu=1'


def make_service(**spec: Any) -> Obj:
    return {
        "apiVersion": INFERENCE_SERVICE.api_version,
        "kind": INFERENCE_SERVICE.kind,
        "metadata": {"namespace": KEY.namespace, "name": KEY.name, "generation": 1},
        "spec": {"model": {"uri": "file:///models/stories"}, **spec},
    }


def make_record(service: Obj) -> Obj:
    """Return the record of a service's one revision, without what the autoscaler knows."""
    name, uid = (service["metadata"][field] for field in ("name", "uid"))
    owner = {"apiVersion": service["apiVersion"], "kind": service["kind"], "name": name, "uid": uid}
    metadata = {
        "namespace": KEY.namespace,
        "name": f"{name}-r1",
        "labels": {contract.LABEL_SERVICE: name},
        "ownerReferences": [{**owner, "controller": True}],
    }
    kind = CONTROLLER_REVISION
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata, "revision": 1}


def make_pod(name: str = "chat-1", revision: str = "r1", **status: Any) -> Obj:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "namespace": KEY.namespace,
            "name": name,
            "uid": f"uid-{name}",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {
                contract.LABEL_SERVICE: KEY.name,
                contract.LABEL_COMPONENT: contract.COMPONENT_REPLICA,
                contract.LABEL_REVISION: revision,
            },
        },
        "status": status,
    }


def ready_status() -> dict[str, Any]:
    return {
        "conditions": [{"type": "Ready", "status": "True"}, {"type": "PodScheduled", "status": "True"}],
        "containerStatuses": [{"name": "replica", "started": True, "state": {"running": {}}}],
    }


def crash_status(message: str = "boom", code: int = 1, restarts: int = 3) -> dict[str, Any]:
    ended = {"terminated": {"exitCode": code, "message": message, "reason": "Error"}}
    return {
        "containerStatuses": [
            {
                "name": "replica",
                "restartCount": restarts,
                "state": {"waiting": {"reason": "CrashLoopBackOff"}},
                "lastState": ended,
            }
        ]
    }


def unschedulable_status(
    message: str = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu.",
) -> dict[str, Any]:
    blocked = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    return {"phase": "Pending", "conditions": [blocked]}


def resolver_status(message: str, code: int = 0) -> dict[str, Any]:
    """Of a Job's pod that has ended, or whose container waits for a restart."""
    ended = {"terminated": {"exitCode": code, "message": message, "reason": "Error" if code else "Completed"}}
    back = {"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": ended}
    container = {"name": "fetch", "restartCount": 2, **(back if code else {"state": ended})}
    return {"phase": "Pending" if code else "Succeeded", "containerStatuses": [container]}


class World:
    """One service, its operator, and controllers that move only on request."""

    settings = RenderSettings()

    def __init__(self, **spec: Any) -> None:
        self.cluster = FakeCluster()
        self.cache = Cache()
        self.now = BEGAN
        self.advice: Advice | None = None
        self.replicas: dict[str, ReplicaStatus] = {}
        self.demand = UNKNOWN_DEMAND
        self.loads: dict[str, PodLoad] | None = {}
        """What gateways have at pods, by uid: nothing where it is not said; None without reports."""
        self.broken: dict[str, dict[str, Any]] = {}
        self.capacity: int | None = None
        self.quota: int | None = None
        self.room: dict[str, int] = {}
        """How many replicas each node has room for; empty where it does not matter where a pod is."""
        self.fetched: dict[str, Fetched] = {}
        """How far pods are with their model, by name."""
        self.model_revision: str | None = None
        self.model_num_bytes: int | None = 16 * 2**30
        """What the models' source has; None: it does not answer."""
        self.is_filled = True
        """Whether a Job that fetches a model into a claim ends."""
        self.model_facts: dict[str, Any] | None = None
        """What its files say of the model; None: a look at them in a claim does not end."""
        self.are_nodes_lost = False
        """Whether pods that are to go stay, as on a node that nobody hears from."""
        self.gateway_key = GatewayKey("A" * 43)
        """What new revisions get whose clients need keys."""
        self._numbers = itertools.count(1)
        self.restart_operator()
        self.cluster.put(make_service(**spec))

    def restart_operator(self) -> None:
        self.cache = Cache()
        self._watched: dict[ObjectKey, Obj] = {}
        self.reconciler = Reconciler(
            self.cluster,
            self.cache,
            WatchRecorder(self.cache, WorkQueue()).put_written,
            self.settings,
            lambda _: self._advise(),
            replicas=lambda _: self.replicas,
            loads=self._read_loads,
            demand=lambda _: self.demand,
            fetched=lambda _: self.fetched,
            gateway_key=self._find_gateway_key,
            clock=lambda: self.now,
        )

    async def _find_gateway_key(self) -> GatewayKey:
        return self.gateway_key

    def _read_loads(self, pods: Iterable[str]) -> dict[str, PodLoad]:
        """Every gateway has seen every mark, and has what the test says."""
        if self.loads is None:
            return {}
        return {uid: self.loads.get(uid, PodLoad(0, has_left=True)) for uid in pods}

    def _advise(self) -> Advice | None:
        """Return the advice, made from the count in status unless the test says otherwise."""
        if self.advice is None or self.advice.made_from is not None:
            return self.advice
        return replace(self.advice, made_from=self.status.get("scaling", {}).get("desiredReplicas"))

    @property
    def service(self) -> Obj:
        return self.cluster.objects[ObjectKey(INFERENCE_SERVICE.kind, *KEY)]

    @property
    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = self.service.get("status", {})
        return status

    def condition(self, name: str) -> dict[str, Any]:
        return next(c for c in self.status["conditions"] if c["type"] == name)

    def edit(self, **spec: Any) -> None:
        old = self.service
        metadata = {**old["metadata"], "generation": old["metadata"]["generation"] + 1}
        self.cluster.put({**old, "metadata": metadata, "spec": {**old["spec"], **spec}})

    def annotate(self, name: str, text: str | None) -> None:
        """Have somebody write the service's one annotation, or take it away."""
        metadata = {key: value for key, value in self.service["metadata"].items() if key != "annotations"}
        beside = {} if text is None else {"annotations": {name: text}}
        self.cluster.put({**self.service, "metadata": {**metadata, **beside}})

    def observe(self) -> None:
        """Bring what the watches would have brought since the last time: by label, and each change once."""
        seen = self._list_watched()
        for key, obj in self._watched.items():
            if key not in seen:
                self.cache.forget(obj)
        for key, obj in seen.items():
            if obj is not self._watched.get(key):
                self.cache.put({**obj, **BY_NAME[key.kind].trim(copy.deepcopy(obj))})
        self._watched = seen

    def _list_watched(self) -> dict[ObjectKey, Obj]:
        kinds = {kind.kind for kind in (*WATCHED, NODE)}
        unlabelled = {INFERENCE_SERVICE.kind, NODE.kind}
        return {
            key: obj
            for key, obj in self.cluster.objects.items()
            if key.kind in kinds and (key.kind in unlabelled or _is_labelled(obj))
        }

    def put_gpu_node(self, name: str, product: str, num_gpus: int = 8, **labels: str) -> None:
        """Add a node with GPUs, or change it; pods go where they like."""
        labels = {"kubernetes.io/hostname": name, LABEL_PRODUCT: product, **labels}
        metadata = {"name": name, "uid": name, "labels": labels}
        status = {"allocatable": {"cpu": "64", "nvidia.com/gpu": str(num_gpus)}}
        self.cluster.put({"kind": NODE.kind, "metadata": metadata, "spec": {}, "status": status})

    def put_claim(self, name: str, phase: str = "Bound", **metadata: str) -> None:
        """Add a claim that many pods may share."""
        head = {"apiVersion": "v1", "kind": PERSISTENT_VOLUME_CLAIM.kind}
        metadata = {"namespace": KEY.namespace, "name": name, **metadata}
        spec: dict[str, Any] = {"accessModes": ["ReadWriteMany"]}
        if phase == "Bound":
            spec["volumeName"] = f"pvc-of-{name}"
        self.cluster.put({**head, "metadata": metadata, "spec": spec, "status": {"phase": phase}})

    def delete_node(self, name: str) -> None:
        del self.cluster.objects[ObjectKey(NODE.kind, "", name)]

    def put_node(self, name: str, room: int = 8, **spec: Any) -> None:
        """Add a node, or change it: `unschedulable=True` is what `kubectl cordon` writes."""
        self.room[name] = room
        self.cluster.put({"kind": NODE.kind, "metadata": {"name": name, "uid": name}, "spec": spec})

    def evict(self, pod: Obj) -> bool:
        """Delete a pod as the eviction API does, where the budget allows it. Return whether it did."""
        (budget,) = self.objects("PodDisruptionBudget")
        num_ready = sum(one["status"] == ready_status() for one in self.pods())
        if pod["status"] == ready_status() and num_ready <= budget["spec"]["minAvailable"]:
            return False
        leaving = {"deletionTimestamp": render_time(self.now + GRACE_SECONDS)}
        self.cluster.put({**pod, "metadata": {**pod["metadata"], **leaving}})
        return True

    async def reconcile(self, *, is_stale: bool = False) -> Outcome:
        """Plan and act once; from what was seen before, if the watches are late."""
        if not is_stale:
            self.observe()
        try:
            return await self.reconciler.reconcile(KEY)
        finally:
            # What was created now is watched from now on, also if it is gone by the next look.
            for key, obj in self._list_watched().items():
                self._watched.setdefault(key, dict(obj))

    async def reconcile_until_quiet(self) -> int:
        """Reconcile until nothing is written, past failures; return the number of writes."""
        before = len(self.cluster.writes)
        for _ in range(60):
            count = len(self.cluster.writes)
            try:
                outcome = await self.reconcile()
            except ClusterError:
                continue
            if len(self.cluster.writes) == count and outcome.retry is None:
                return count - before
        raise AssertionError(f"never quiet: {self.cluster.writes[-8:]}")

    async def settle(self) -> None:
        """Let the operator and the controllers take turns until neither moves."""
        for _ in range(60):
            written = await self.reconcile_until_quiet()
            if not self.run_controllers() and not written:
                return
        raise AssertionError("never settled")

    def deployments(self) -> dict[str, int]:
        return {
            d["metadata"]["labels"][contract.LABEL_REVISION]: d["spec"]["replicas"]
            for d in self.objects("Deployment")
        }

    def pods(self, revision: str | None = None) -> list[Obj]:
        """The pods that a ReplicaSet counts: neither being deleted nor ended."""
        staying = [pod for pod in self.objects("Pod") if not _is_leaving(pod) and not _has_ended(pod)]
        pods = [pod for pod in staying if not _is_of_job(pod)]
        return [p for p in pods if revision in (None, p["metadata"]["labels"][contract.LABEL_REVISION])]

    def objects(self, kind: str) -> list[Obj]:
        return [obj for (name, *_), obj in self.cluster.objects.items() if name == kind]

    def run_controllers(self) -> bool:
        """Garbage-collect, then make or delete pods; return whether anything moved."""
        moved = self._end_pods() or self._collect()
        for deployment in self.objects("Deployment"):
            revision = deployment["metadata"]["labels"].get(contract.LABEL_REVISION)
            if revision is None:
                continue  # somebody else's
            pods = self.pods(revision)
            for pod in sorted(pods, key=_departure)[: max(0, len(pods) - deployment["spec"]["replicas"])]:
                leaving = {"deletionTimestamp": render_time(self.now + GRACE_SECONDS)}
                self.cluster.put({**pod, "metadata": {**pod["metadata"], **leaving}})
                moved = True
            for _ in range(deployment["spec"]["replicas"] - len(pods)):
                if self.quota is not None and self._count_quota() >= self.quota:
                    break
                self._create_pod(revision, deployment)
                moved = True
            moved |= self._report_refusal(deployment)
        moved |= self._run_jobs()
        return self._run_kubelets() or moved

    def _run_jobs(self) -> bool:
        """Make the pod of each Job that may have one, and end it as soon as the source answers."""
        for made in (*self.objects("Job"), *self.objects("ControllerRevision")):
            if "creationTimestamp" not in made["metadata"]:
                metadata = {**made["metadata"], "creationTimestamp": render_time(self.now)}
                self.cluster.put({**made, "metadata": metadata})
        jobs = [job for job in self.objects("Job") if "status" not in job and _may_run(job)]
        return sum(self._run_job(job) for job in jobs) > 0

    def _run_job(self, job: Obj) -> bool:
        pod = next((one for one in self.objects("Pod") if _is_of(one, job)), None)
        has_begun = pod is not None
        if not has_begun and self.quota is not None and self._count_quota() >= self.quota:
            return False
        pod = pod or self._make_job_pod(job)
        message = "" if _fills(job) else self._report() if _looks(job) else self._answer()
        if message is None or (_fills(job) and not self.is_filled):
            return not has_begun
        self.cluster.put({**pod, "status": resolver_status(message)})
        done = {"type": "Complete", "status": "True", "lastTransitionTime": render_time(self.now)}
        self.cluster.put({**job, "status": {"conditions": [done]}})
        return True

    def _answer(self) -> str | None:
        """Return what a source that answers says of its model."""
        if self.model_revision is None:
            return None
        told: Obj = {"revision": self.model_revision, "numFiles": 3}
        if self.model_num_bytes is not None:
            told["numBytes"] = self.model_num_bytes
        return json.dumps(told if self.model_facts is None else {**told, "facts": self.model_facts})

    def _report(self) -> str | None:
        """Return what a look at a model in a claim reports."""
        if self.model_facts is None:
            return None
        return json.dumps({"numFiles": 3, "numBytes": self.model_num_bytes, "facts": self.model_facts})

    def _make_job_pod(self, job: Obj) -> Obj:
        name = f"{job['metadata']['name']}-{next(self._numbers)}"
        pod = make_pod(name)
        labels = job["spec"]["template"]["metadata"]["labels"]
        owner = {"kind": "Job", "uid": job["metadata"]["uid"], "controller": True}
        metadata = {**pod["metadata"], "labels": labels, "ownerReferences": [owner]}
        self.cluster.put({**pod, "metadata": metadata})
        return self.cluster.objects[ObjectKey(POD.kind, KEY.namespace, name)]

    def _count_quota(self) -> int:
        return sum(not _has_ended(pod) for pod in self.objects("Pod"))

    def _report_refusal(self, deployment: Obj) -> bool:
        """Tell in the Deployment's status that the quota refuses some of its pods, or that it does not."""
        revision = deployment["metadata"]["labels"][contract.LABEL_REVISION]
        is_short = len(self.pods(revision)) < deployment["spec"]["replicas"]
        refusal = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": QUOTA}
        status = {
            "conditions": [{**refusal, "lastTransitionTime": render_time(self.now)}] if is_short else []
        }
        if bool(deployment.get("status", {}).get("conditions")) == is_short:
            return False
        self.cluster.put({**deployment, "status": status})
        return True

    def _create_pod(self, revision: str, deployment: Obj) -> None:
        number = next(self._numbers)
        pod = make_pod(f"chat-{revision}-{number}", revision)
        pod["metadata"]["creationTimestamp"] = render_time(self.now + number)
        owner = {"kind": DEPLOYMENT.kind, "uid": deployment["metadata"]["uid"], "controller": True}
        pod["metadata"]["ownerReferences"] = [owner]
        pod["spec"] = {"containers": deployment["spec"]["template"]["spec"]["containers"]}
        self.cluster.put(pod)

    def _end_pods(self) -> bool:
        """Let go what was leaving at the last turn."""
        leaving = [] if self.are_nodes_lost else [pod for pod in self.objects("Pod") if _is_leaving(pod)]
        for pod in leaving:
            self.cluster.remove(POD, KEY.namespace, pod["metadata"]["name"])
        return bool(leaving)

    def _run_kubelets(self) -> bool:
        moved = False
        num_placed = sum(
            bool(pod["status"]) and pod["status"] != unschedulable_status() and not _has_ended(pod)
            for pod in self.objects("Pod")
        )
        for pod in self.pods():
            if pod["status"] and pod["status"] != unschedulable_status():
                continue
            node = self._find_node() if self.room else None
            has_room = node is not None or (
                not self.room and (self.capacity is None or num_placed < self.capacity)
            )
            revision = pod["metadata"]["labels"][contract.LABEL_REVISION]
            status = self.broken.get(revision, ready_status()) if has_room else unschedulable_status()
            num_placed += has_room
            if status != pod["status"]:
                place = {} if node is None else {"spec": {**pod.get("spec", {}), "nodeName": node}}
                self.cluster.put({**pod, **place, "status": status})
                moved = True
        return moved

    def _find_node(self) -> str | None:
        """Return the emptiest node that is not cordoned and has room."""
        used = Counter(pod.get("spec", {}).get("nodeName") for pod in self.objects("Pod"))
        names = [node["metadata"]["name"] for node in self.objects("Node") if not node["spec"]]
        free = [name for name in names if used[name] < self.room[name]]
        return min(free, key=lambda name: (used[name], name), default=None)

    def _collect(self) -> bool:
        uids = {obj["metadata"]["uid"] for obj in self.cluster.objects.values()}
        orphans = [
            key
            for key, obj in self.cluster.objects.items()
            if any(owner["uid"] not in uids for owner in obj["metadata"].get("ownerReferences", []))
        ]
        for key in orphans:
            self.cluster.remove(BY_NAME[key.kind], key.namespace, key.name)
        return bool(orphans)

    def num_children(self) -> int:
        return sum(len(self.objects(kind.kind)) for kind in CHILDREN)


def _is_labelled(obj: Obj) -> bool:
    return contract.LABEL_SERVICE in obj["metadata"].get("labels", {})


def _is_of_job(pod: Obj) -> bool:
    component = pod["metadata"]["labels"].get(contract.LABEL_COMPONENT)
    return component in (contract.COMPONENT_RESOLVER, contract.COMPONENT_FILLER)


def _may_run(job: Obj) -> bool:
    return not job["spec"].get("suspend") and job["spec"].get("parallelism", 1) > 0


def _fills(job: Obj) -> bool:
    labels = job["spec"]["template"]["metadata"]["labels"]
    return bool(labels[contract.LABEL_COMPONENT] == contract.COMPONENT_FILLER)


def _looks(job: Obj) -> bool:
    (container,) = job["spec"]["template"]["spec"]["containers"]
    return bool(container["args"][1].startswith("file://"))


def _is_of(pod: Obj, owner: Obj) -> bool:
    uids = {reference["uid"] for reference in pod["metadata"].get("ownerReferences", [])}
    return owner["metadata"]["uid"] in uids


def _is_leaving(pod: Obj) -> bool:
    return "deletionTimestamp" in pod["metadata"]


def _has_ended(pod: Obj) -> bool:
    return pod["status"].get("phase") in ("Failed", "Succeeded")


def _departure(pod: Obj) -> tuple[bool, int, list[int]]:
    """The ReplicaSet controller's order: not Ready first, then the lowest cost, then the youngest."""
    is_ready = pod["status"] == ready_status()
    cost = int(pod["metadata"].get("annotations", {}).get(DELETION_COST, 0))
    return is_ready, cost, [-ord(letter) for letter in pod["metadata"]["creationTimestamp"]]
