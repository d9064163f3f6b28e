"""What the operator relies on of an API server. The real one and the fake one are held to the same cases."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from millrace_operator.kube.errors import AbsentError, ConflictError, RefusedError
from millrace_operator.kube.kinds import (
    CONTROLLER_REVISION,
    DEPLOYMENT,
    LEASE,
    POD,
    SECRET,
    SERVICE_ACCOUNT,
    Kind,
    Obj,
    Scope,
)
from millrace_operator.kube.protocol import Cluster
from millrace_operator.status.event_aggregation import Topic, WrittenEvent, render_again, render_event
from millrace_operator.status.events import Note

Case = Callable[[Cluster, str], Awaitable[None]]
CASES: list[Case] = []
LABELS = {"app": "contract"}
CONTAINER = {
    "name": "replica",
    "image": "example.com/none:1",
    "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
}
TEMPLATE: dict[str, Any] = {
    "metadata": {"labels": LABELS},
    "spec": {
        "containers": [CONTAINER],
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
    },
}
"""As Pod Security `restricted` wants it."""


def case(function: Case) -> Case:
    CASES.append(function)
    return function


def make(kind: Kind, namespace: str, name: str = "one", **fields: Any) -> Obj:
    metadata = {"namespace": namespace, "name": name, "labels": dict(LABELS)}
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata, **fields}


def make_account(namespace: str, name: str = "one", *, mounts: bool = False) -> Obj:
    return make(SERVICE_ACCOUNT, namespace, name, automountServiceAccountToken=mounts)


def make_deployment(namespace: str) -> Obj:
    spec = {"replicas": 0, "selector": {"matchLabels": LABELS}, "template": TEMPLATE}
    return make(DEPLOYMENT, namespace, spec=spec)


@case
async def what_a_record_says_cannot_be_changed(cluster: Cluster, namespace: str) -> None:
    record = make(CONTROLLER_REVISION, namespace, revision=1, data={"template": {}})
    made = await cluster.apply_new(record)
    with pytest.raises(RefusedError, match="immutable"):
        await cluster.apply_owned({**record, "data": {"template": {"a": 1}}}, made["metadata"]["uid"])
    await cluster.apply_owned({**record, "revision": 2}, made["metadata"]["uid"])


@case
async def what_exists_cannot_be_created(cluster: Cluster, namespace: str) -> None:
    made = await cluster.apply_new(make_account(namespace))
    with pytest.raises(ConflictError):
        await cluster.apply_new(make_account(namespace, mounts=True))
    found = await cluster.fetch(SERVICE_ACCOUNT, namespace, "one")
    assert found is not None
    assert found["metadata"]["uid"] == made["metadata"]["uid"]
    assert found["automountServiceAccountToken"] is False


@case
async def an_apply_of_the_same_writes_nothing(cluster: Cluster, namespace: str) -> None:
    made = await cluster.apply_new(make_account(namespace))
    again = await cluster.apply_owned(make_account(namespace), made["metadata"]["uid"])
    assert again["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]
    other = await cluster.apply_owned(make_account(namespace, mounts=True), made["metadata"]["uid"])
    assert int(other["metadata"]["resourceVersion"]) > int(made["metadata"]["resourceVersion"])


@case
async def an_apply_names_the_object_that_it_means(cluster: Cluster, namespace: str) -> None:
    made = await cluster.apply_new(make_account(namespace))
    with pytest.raises(ConflictError):
        await cluster.apply_owned(make_account(namespace, mounts=True), "another-uid")
    await cluster.delete(SERVICE_ACCOUNT, namespace, "one", made["metadata"]["uid"])
    with pytest.raises(ConflictError):
        await cluster.apply_owned(make_account(namespace), made["metadata"]["uid"])
    assert await cluster.fetch(SERVICE_ACCOUNT, namespace, "one") is None


@case
async def a_late_apply_undoes_nothing(cluster: Cluster, namespace: str) -> None:
    made = await cluster.apply_new(make_account(namespace))
    uid, version = (made["metadata"][field] for field in ("uid", "resourceVersion"))
    newer = await cluster.apply_owned(make_account(namespace, mounts=True), uid, version)
    with pytest.raises(ConflictError):
        await cluster.apply_owned(make_account(namespace), uid, version)
    found = await cluster.fetch(SERVICE_ACCOUNT, namespace, "one")
    assert found is not None
    assert found["automountServiceAccountToken"] is True
    await cluster.apply_owned(make_account(namespace), uid, newer["metadata"]["resourceVersion"])


@case
async def a_deletion_names_the_object_that_it_means(cluster: Cluster, namespace: str) -> None:
    made = await cluster.apply_new(make_account(namespace))
    with pytest.raises(ConflictError):
        await cluster.delete(SERVICE_ACCOUNT, namespace, "one", "another-uid")
    uid, version = (made["metadata"][field] for field in ("uid", "resourceVersion"))
    newer = await cluster.apply_owned(make_account(namespace, mounts=True), uid)
    with pytest.raises(ConflictError):
        await cluster.delete(SERVICE_ACCOUNT, namespace, "one", uid, version)
    for _ in range(2):
        await cluster.delete(SERVICE_ACCOUNT, namespace, "one", uid, newer["metadata"]["resourceVersion"])


@case
async def a_status_is_written_at_the_version_that_was_seen(cluster: Cluster, namespace: str) -> None:
    made = await cluster.apply_new(make_deployment(namespace))
    labelled = make_deployment(namespace)
    labelled["metadata"]["labels"] = {**LABELS, "tier": "gold"}
    await cluster.apply_owned(labelled, made["metadata"]["uid"])
    head = {"apiVersion": made["apiVersion"], "kind": made["kind"]}
    names = {field: made["metadata"][field] for field in ("namespace", "name", "resourceVersion")}
    with pytest.raises(ConflictError):
        await cluster.apply_status({**head, "metadata": names, "status": {"collisionCount": 1}})
    gone = {**names, "name": "another"}
    with pytest.raises(AbsentError):
        await cluster.apply_status({**head, "metadata": gone, "status": {"collisionCount": 1}})


@case
async def an_annotation_is_of_one_pod(cluster: Cluster, namespace: str) -> None:
    spec = {**TEMPLATE["spec"], "nodeSelector": {"contract": "nowhere"}}
    pod = await cluster.apply_new(make(POD, namespace, spec=spec))
    uid = pod["metadata"]["uid"]
    marked = await cluster.annotate(POD, namespace, "one", uid, {"cost": "-1"})
    assert marked["metadata"]["annotations"]["cost"] == "-1"
    cleared = await cluster.annotate(POD, namespace, "one", uid, {"cost": None})
    assert "cost" not in cleared["metadata"].get("annotations", {})
    with pytest.raises(ConflictError):
        await cluster.annotate(POD, namespace, "one", "another-uid", {"cost": "-1"})
    with pytest.raises(AbsentError):
        await cluster.annotate(POD, namespace, "another", uid, {"cost": "-1"})


@case
async def a_late_annotation_undoes_nothing(cluster: Cluster, namespace: str) -> None:
    spec = {**TEMPLATE["spec"], "nodeSelector": {"contract": "nowhere"}}
    pod = await cluster.apply_new(make(POD, namespace, spec=spec))
    uid, version = (pod["metadata"][field] for field in ("uid", "resourceVersion"))
    await cluster.annotate(POD, namespace, "one", uid, {"cost": "-2"})
    with pytest.raises(ConflictError):
        await cluster.annotate(POD, namespace, "one", uid, {"cost": "-1"}, version=version)
    told = await annotate_as_it_is(cluster, namespace, {"time": "1"})
    assert (told["cost"], told["time"]) == ("-2", "1")


async def annotate_as_it_is(
    cluster: Cluster, namespace: str, annotations: dict[str, str | None]
) -> dict[str, str]:
    """Annotate the pod at the version that it has. The scheduler may write between: then at the next one."""
    for _ in range(20):
        found = await cluster.fetch(POD, namespace, "one")
        assert found is not None
        uid, version = (found["metadata"][field] for field in ("uid", "resourceVersion"))
        try:
            written = await cluster.annotate(POD, namespace, "one", uid, annotations, version=version)
        except ConflictError:
            continue
        told: dict[str, str] = written["metadata"]["annotations"]
        return told
    raise AssertionError("another version each time")


@case
async def an_entry_of_data_is_changed_at_the_version_that_was_read(cluster: Cluster, namespace: str) -> None:
    secret = await cluster.apply_new(make(SECRET, namespace, type="Opaque", data={"a": "QQ==", "b": "Qg=="}))
    changed = await cluster.change_data(secret, {"a": None, "c": "Qw=="})
    assert changed["data"] == {"b": "Qg==", "c": "Qw=="}
    with pytest.raises(ConflictError):
        await cluster.change_data(secret, {"b": None})
    with pytest.raises(ConflictError):
        await cluster.apply_new(make(SECRET, namespace, data={}))
    await cluster.delete(SECRET, namespace, "one", changed["metadata"]["uid"])
    with pytest.raises(AbsentError):
        await cluster.change_data(changed, {"b": None})


@case
async def an_event_can_be_told_again_until_it_is_gone(cluster: Cluster, namespace: str) -> None:
    service = {
        "apiVersion": "millrace.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"namespace": namespace, "name": "one", "uid": "an-uid"},
    }
    note = Note("Crashing", "it ended", is_warning=True)
    topic = Topic("an-uid", note)
    event = await cluster.create_event(render_event(service, note, topic, 1767225600.0))
    name = event["metadata"]["name"]
    again = render_again(note, topic, WrittenEvent(name, 2, 1767225660.0))
    await cluster.change_event(namespace, name, again)
    with pytest.raises(AbsentError):
        await cluster.change_event(namespace, "one.gone", again)


@case
async def a_lease_is_replaced_at_the_version_that_was_seen(cluster: Cluster, namespace: str) -> None:
    spec = {"holderIdentity": "a", "leaseDurationSeconds": 15}
    made = await cluster.create_lease(make(LEASE, namespace, spec=spec))
    with pytest.raises(ConflictError):
        await cluster.create_lease(make(LEASE, namespace, spec=spec))
    head = {"apiVersion": LEASE.api_version, "kind": LEASE.kind}
    taken = {**made, **head, "spec": {**spec, "holderIdentity": "b"}}
    await cluster.replace_lease(taken)
    with pytest.raises(ConflictError):
        await cluster.replace_lease(taken)


@case
async def a_name_that_cannot_be_is_refused(cluster: Cluster, namespace: str) -> None:
    with pytest.raises(RefusedError):
        await cluster.apply_new(make_account(namespace, "Not_A_Name"))


@case
async def a_list_is_by_label_and_says_when_it_was_made(cluster: Cluster, namespace: str) -> None:
    made = await cluster.apply_new(make_account(namespace))
    labelled = await cluster.fetch_all(Scope(SERVICE_ACCOUNT), "app")
    others = await cluster.fetch_all(Scope(SERVICE_ACCOUNT), "another")
    mine = [obj for obj in labelled.objects if obj["metadata"]["namespace"] == namespace]
    assert [obj["metadata"]["uid"] for obj in mine] == [made["metadata"]["uid"]]
    assert not [obj for obj in others.objects if obj["metadata"]["namespace"] == namespace]
    assert labelled.version >= int(made["metadata"]["resourceVersion"])
