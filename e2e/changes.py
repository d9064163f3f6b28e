"""What people do to a service while its operators are killed and stopped, and how it is before that."""

import json
from collections.abc import Callable
from typing import Any, NamedTuple

from e2e.cluster.api_reader import find_condition
from e2e.instant_kubelet import NO_MODEL, OWN
from e2e.write_faults import Stage
from millrace_runtime.contract import LABEL_SERVICE
from testing.polling import wait_until

CHILDREN = "deployments,controllerrevisions,services,serviceaccounts,poddisruptionbudgets"
DEADLINE = "10s"
"""After which a revision is given up, for a change that waits for it."""
SETTLE_SECONDS = 180.0
Object = dict[str, Any]


def render_service(name: str, replicas: int = 1, max_sequences: int = 16) -> Object:
    """Return a service whose count and whose canary move by a person's hand alone."""
    return {
        "apiVersion": "millrace.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": name},
        "spec": {
            "model": {"uri": "file:///models/stories"},
            "engine": {"maxSequences": max_sequences},
            "scaling": {"mode": "External"},
            "rollout": {"canary": {"promotion": "Manual"}},
            "replicas": replicas,
        },
    }


class Change(NamedTuple):
    """Something that a person does to a service, and how many writes of the operator it takes at least."""

    name: str
    replicas: int
    act: Callable[[Stage, str], None]
    num_writes: int
    has_canary: bool = False
    """Whether a canary awaits its promotion before that."""
    has_claim: bool = False
    """Whether there is a claim for models before that."""
    has_deadline: bool = False
    """Whether a revision without a canary is given up after DEADLINE."""
    has_own_nodes: bool = False
    """Whether each service has two Nodes of its own."""
    is_at_rest: bool = False
    """Whether it has been scaled to zero before that."""
    is_new: bool = False
    """Whether it is not there before that."""

    @property
    def model(self) -> str:
        """Name of the service that nobody disturbs."""
        return self.name_service(0)

    @property
    def services(self) -> tuple[str, ...]:
        """Names of the model, and of one service for each write."""
        return tuple(map(self.name_service, range(self.num_writes + 1)))

    def name_service(self, number: int) -> str:
        """Name the service that is disturbed at the write of that number, from 1 on."""
        return f"{self.name}-{number:02}"

    def render(self, name: str, max_sequences: int = 16) -> Object:
        """Return a service as it is before the change."""
        service = render_service(name, self.replicas, max_sequences)
        if self.has_deadline:
            service["spec"]["rollout"] = {"progressDeadline": DEADLINE}
        if self.has_own_nodes:
            tolerations = [{"key": OWN, "operator": "Exists"}]
            service["spec"]["pod"] = {"nodeSelector": {OWN: name}, "tolerations": tolerations}
        return service


def create(stage: Stage, name: str) -> None:
    stage.apply(render_service(name))


def scale(stage: Stage, name: str, replicas: int) -> None:
    stage.patch(name, {"spec": {"replicas": replicas}}, "/scale")


def delete_children(stage: Stage, name: str) -> None:
    stage.kubectl("delete", CHILDREN, "-l", f"{LABEL_SERVICE}={name}", "--wait=false")


def order(stage: Stage, name: str, action: str) -> None:
    revision = stage.read(name)["status"]["updateRevision"]
    stage.patch(name, {"metadata": {"annotations": {"millrace.dev/rollout": f"{action} {revision}"}}})


def look(stage: Stage, name: str) -> None:
    """Have a model in a claim served, at which a Job looks first."""
    edit_model(stage, name, {"uri": "pvc://models/stories"})


def fill(stage: Stage, name: str) -> None:
    """Have a model served that one Job looks up, and another one fetches into a claim."""
    cache = {"type": "PersistentVolumeClaim", "claimName": "models"}
    edit_model(stage, name, {"uri": "hf://org/m@main", "cache": cache})


def edit_model(stage: Stage, name: str, model: Object) -> None:
    edited = render_service(name)
    edited["spec"]["model"] = model
    stage.apply(edited)


def fail(stage: Stage, name: str) -> None:
    """Ask for a revision that is never Ready."""
    edited = ROLLBACK.render(name)
    edited["spec"]["model"] = {"uri": f"file://{NO_MODEL}"}
    stage.apply(edited)


def cordon(stage: Stage, name: str) -> None:
    (pod,) = stage.list_pods(name)
    stage.kubectl("cordon", pod["spec"]["nodeName"])


NEW = Change("new", 1, create, 7, is_new=True)
"""Its status, and its six children."""
DOWN = Change("down", 3, lambda stage, name: scale(stage, name, 1), 8)
PROMOTE = Change("promote", 2, lambda stage, name: order(stage, name, "promote"), 8, has_canary=True)
UP = Change("up", 1, lambda stage, name: scale(stage, name, 3), 6)
RESTORE = Change("restore", 1, delete_children, 6)
ABORT = Change("abort", 2, lambda stage, name: order(stage, name, "abort"), 7, has_canary=True)
LOOK = Change("look", 1, look, 8, has_claim=True)
FILL = Change("fill", 1, fill, 11, has_claim=True)
ZERO = Change("zero", 2, lambda stage, name: scale(stage, name, 0), 6)
WAKE = Change("wake", 1, lambda stage, name: scale(stage, name, 1), 4, is_at_rest=True)
CORDON = Change("cordon", 1, cordon, 8, has_own_nodes=True)
ROLLBACK = Change("rollback", 1, fail, 9, has_deadline=True)


def prepare(stage: Stage, change: Change, names: tuple[str, ...]) -> None:
    """Have these services as they are before the change."""
    if change.is_new:
        return
    if change.has_claim:
        make_claim(stage)
    if change.has_own_nodes:
        stage.kubectl("uncordon", "-l", OWN)
    stage.apply(*map(change.render, names))
    wait_until(f"{names} serve", lambda: all(map(stage.is_served, names)), SETTLE_SECONDS)
    if change.has_canary:
        stage.apply(*(change.render(name, 8) for name in names))
        wait_until("canaries", lambda: all(awaits_promotion(stage, name) for name in names), SETTLE_SECONDS)
    if change.is_at_rest:
        for name in names:
            scale(stage, name, 0)
        wait_until("rest", lambda: not any(map(stage.list_pods, names)), SETTLE_SECONDS)


def awaits_promotion(stage: Stage, name: str) -> bool:
    return find_condition(stage.read(name), "Progressing").get("reason") == "AwaitingPromotion"


def make_claim(stage: Stage) -> None:
    """Make the claim `models`, and a volume for it."""
    name, size = f"models-{stage.namespace}", {"storage": "1Gi"}
    common = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {**common, "capacity": size, "hostPath": {"path": "/models"}},
    }
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "models"},
        "spec": {**common, "volumeName": name, "resources": {"requests": size}},
    }
    stage.cluster.kubectl("apply", "-f", "-", stdin=json.dumps(volume))
    stage.kubectl("apply", "-f", "-", stdin=json.dumps(claim))
