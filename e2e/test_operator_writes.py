"""Operators that are killed or stopped at each of their writes: the end is what it is without that.

Kubernetes' own controllers and scheduler run, with pods that are only said to be Ready.
"""

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from e2e.api_proxy import Moment
from e2e.cluster.api_reader import find_condition
from e2e.cluster.errors import PartFailedError
from e2e.cluster.local_cluster import LocalCluster
from e2e.instant_kubelet import InstantKubelet
from e2e.polling import wait_until
from e2e.write_faults import Stage
from millrace_runtime.contract import LABEL_SERVICE

ROOT = Path(__file__).resolve().parents[1]
CHILDREN = "deployments,controllerrevisions,services,serviceaccounts,poddisruptionbudgets"
NUM_NEW_WRITES = 7
"""Of a new service: its status, and its six children."""
QUIET_SECONDS = 3.0
"""Longer than from one pass over what was learned to the next."""
SETTLE_SECONDS = 60.0
Object = dict[str, Any]


@pytest.fixture(scope="module")
def cluster(make_state_folder: Callable[[str], Path]) -> Iterator[LocalCluster]:
    """A control plane whose one Node has no heartbeat."""
    local = LocalCluster(make_state_folder("writes"), nodes=())
    try:
        local.start()
        local.kill_part("kube-controller-manager")
        local.start_part("kube-controller-manager", "--controllers=-node-lifecycle-controller")
        local.kubectl("apply", "--server-side", "-f", str(ROOT / "crds"))
        established = ("wait", "--for=condition=Established", "crd/inferenceservices.millrace.dev")
        wait_until("the definition", lambda: local.kubectl(*established), 60, outlives=(PartFailedError,))
        with InstantKubelet(local):
            yield local
    finally:
        local.kill_part("kube-apiserver")  # it would wait for those who watch
        local.stop()


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


def scale(stage: Stage, name: str, replicas: int) -> None:
    stage.kubectl("scale", "infsvc", name, f"--replicas={replicas}")


def delete_children(stage: Stage, name: str) -> None:
    stage.kubectl("delete", CHILDREN, "-l", f"{LABEL_SERVICE}={name}", "--wait=false")


def order(stage: Stage, name: str, action: str) -> None:
    revision = stage.read(name)["status"]["updateRevision"]
    stage.kubectl("annotate", "infsvc", name, f"millrace.dev/rollout={action} {revision}")


def look(stage: Stage, name: str) -> None:
    """Have a model in a claim served, at which a Job looks first."""
    edited = render_service(name)
    edited["spec"]["model"] = {"uri": "pvc://models/stories"}
    stage.apply(edited)


def fill(stage: Stage, name: str) -> None:
    """Have a model served that one Job looks up, and another one fetches into a claim."""
    edited = render_service(name)
    cache = {"type": "PersistentVolumeClaim", "claimName": "models"}
    edited["spec"]["model"] = {"uri": "hf://org/m@main", "cache": cache}
    stage.apply(edited)


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
    is_at_rest: bool = False
    """Whether it has been scaled to zero before that."""

    @property
    def services(self) -> tuple[str, ...]:
        """Names: of the one that nobody disturbs, and of one for each kill."""
        return tuple(f"{self.name}-{number:02}" for number in range(self.num_writes + 1))

    def render(self, name: str, max_sequences: int = 16) -> Object:
        """Return a service as it is before the change."""
        return render_service(name, self.replicas, max_sequences)


CHANGES = (
    Change("down", 3, lambda stage, name: scale(stage, name, 1), 8),
    Change("promote", 2, lambda stage, name: order(stage, name, "promote"), 8, has_canary=True),
)
"""Between them they have every kind of write: marks, Events, and what was learned, too."""
MORE_CHANGES = (
    Change("up", 1, lambda stage, name: scale(stage, name, 3), 6),
    Change("restore", 1, delete_children, 6),
    Change("abort", 2, lambda stage, name: order(stage, name, "abort"), 7, has_canary=True),
)
CHANGES_OF_JOBS = (
    Change("look", 1, look, 8, has_claim=True),
    Change("fill", 1, fill, 11, has_claim=True),
)
CHANGES_OF_REST = (
    Change("zero", 2, lambda stage, name: scale(stage, name, 0), 6),
    Change("wake", 1, lambda stage, name: scale(stage, name, 1), 4, is_at_rest=True),
)


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


@pytest.mark.parametrize(
    "changes",
    [
        CHANGES,
        *(
            pytest.param(changes, marks=pytest.mark.long)
            for changes in (MORE_CHANGES, CHANGES_OF_JOBS, CHANGES_OF_REST)
        ),
    ],
)
def test_a_kill_after_any_write_changes_nothing_of_the_end(
    cluster: LocalCluster, tmp_path: Path, changes: tuple[Change, ...]
) -> None:
    """What a kill before a write leaves is what a kill after the write before it leaves."""
    with ThreadPoolExecutor(len(changes)) as pool:
        runs = [pool.submit(run_change, Stage(cluster, one.name, tmp_path), one) for one in changes]
        for run in runs:
            run.result()


def run_change(stage: Stage, change: Change) -> None:
    """Make a change undisturbed, and again with a kill after its first write, after its second, and so on."""
    model, *names = change.services
    with stage.open_proxy() as proxy:
        with stage.start(proxy, "first") as operator:
            operator.wait_leading()
            prepare(stage, change, (model, *names))
            proxy.wait_until_quiet(QUIET_SECONDS)
            before = len(proxy.writes)
            change.act(stage, model)
            wait_until("the writes", lambda: len(proxy.writes) >= before + change.num_writes)
            proxy.wait_until_quiet(QUIET_SECONDS)
        for number, name in enumerate(names, 1):
            stage.free_lease()
            with stage.start(proxy, name) as operator:
                operator.wait_leading()
                proxy.strike(name, number, Moment.LANDED, operator.kill)
                change.act(stage, name)
                operator.wait_ended()
                assert proxy.has_struck, f"{name} ended by itself"
        stage.free_lease()
        with stage.start(proxy, "last") as operator:
            operator.wait_leading()
            for name in names:
                wait_same(stage, name, model)


def prepare(stage: Stage, change: Change, names: tuple[str, ...]) -> None:
    if change.has_claim:
        make_claim(stage)
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


def wait_same(stage: Stage, name: str, model: str) -> None:
    """Wait until a service is as its model, which nobody disturbed."""
    try:
        wait_until(name, lambda: stage.describe(name) == stage.describe(model), SETTLE_SECONDS)
    except AssertionError:
        assert stage.describe(name) == stage.describe(model)


def test_a_leader_that_stands_still_at_any_write_of_a_new_service_writes_no_more(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """Each stands still in a namespace of its own, all at the same time."""
    numbers = range(1, NUM_NEW_WRITES + 1)
    with ThreadPoolExecutor(NUM_NEW_WRITES) as pool:
        runs = [
            pool.submit(stand_still, Stage(cluster, f"still-{number}", tmp_path), number)
            for number in numbers
        ]
        for run in runs:
            run.result()


def stand_still(stage: Stage, number: int) -> None:
    """Stop a leader's clock in the middle of a write. Another leads, and the write arrives after that."""
    with ExitStack() as stack:
        proxy, others = (stack.enter_context(stage.open_proxy()) for _ in range(2))
        first = stack.enter_context(stage.start(proxy, "a")).wait_leading()
        second = stack.enter_context(stage.start(others, "b"))
        proxy.strike("chat", number, Moment.HELD, first.pause)
        stage.apply(render_service("chat"))
        wait_until(f"write {number} under way", lambda: proxy.has_struck)
        second.wait_leading()
        wait_until("another one serves it", lambda: stage.is_served("chat"), SETTLE_SECONDS)
        scale(stage, "chat", 2)
        wait_until("and scales it", lambda: stage.is_served("chat"), SETTLE_SECONDS)
        others.wait_until_quiet(QUIET_SECONDS)
        before, versions = len(proxy.answers), stage.list_versions("chat")
        proxy.release()
        wait_until("the late write", lambda: len(proxy.answers) > before)
        first.resume()
        wait_until("its end of leading", lambda: "no longer leading" in first.text)
        time.sleep(QUIET_SECONDS)
        assert proxy.answers[before:] == [409]
        assert stage.list_versions("chat") == versions
        assert first.is_running
