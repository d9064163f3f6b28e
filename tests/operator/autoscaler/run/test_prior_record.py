"""Records of many services: a failure of one harms no other."""

import json
import logging
from typing import Any

import pytest

from millrace_operator.api.change_record import KEY as CHANGES
from millrace_operator.api.change_record import find_newest, read_changes
from millrace_operator.autoscaler.decide.prior import PRIOR
from millrace_operator.autoscaler.run.prior_record import MOST_BYTES, Record
from millrace_operator.autoscaler.run.prior_store import PERIOD_SECONDS, Priors
from millrace_operator.controller.cache import Cache
from millrace_operator.kube.fake import FakeCluster
from millrace_operator.kube.kinds import CONTROLLER_REVISION, Kind, Obj, ObjectKey, ServiceKey
from testing.world import KEY, make_record, make_service

NAMES = ["a", "b", "c"]


def make(name: str, *counts: int, uid: str = "", version: int = 1) -> Obj:
    """Return a service whose count has changed to each of these."""
    service = make_service(scaling={"mode": "External"}, replicas=1)
    service["metadata"] |= {"name": name, "uid": uid or f"uid-{name}", "resourceVersion": str(version)}
    changes = [f"2026-01-01T00:{count:02d}:00Z 0 -> {count} External x" for count in counts]
    return {**service, "status": {"scaling": {"desiredReplicas": 1, "lastChanges": changes}}}


class Odd(FakeCluster):
    """It fails in its own way at the record of one service."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = f"{name}-r1"
        self.num_tries = 0

    async def annotate(self, kind: Kind, namespace: str, name: str, *args: Any, **words: Any) -> Obj:
        if name == self._name:
            self.num_tries += 1
            raise KeyError("metadata")
        return await super().annotate(kind, namespace, name, *args, **words)


def test_a_record_that_an_annotation_cannot_hold_loses_its_prior_and_no_change() -> None:
    service = make("a", 1, 2)
    changes = tuple(read_changes("\n".join(service["status"]["scaling"]["lastChanges"])))
    texts = [Record(prior="p" * size, changes=changes).render(0.0) for size in (10, MOST_BYTES)]
    assert [PRIOR in json.loads(text) for text in texts] == [True, False]
    assert all(len(text) <= MOST_BYTES for text in texts)
    assert len({json.dumps(json.loads(text)[CHANGES]) for text in texts}) == 1


class Stage:
    """One leader that writes records, in virtual time."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster, self.cache, self.now = cluster, Cache(), 1_700_000_000.0
        self.priors = Priors(cluster, self.cache, lambda: True, lambda _: None, lambda: self.now)

    def put(self, service: Obj) -> None:
        """Have a service, and the record of its revision."""
        self.cache.put(service)
        key = ObjectKey(CONTROLLER_REVISION.kind, KEY.namespace, f"{service['metadata']['name']}-r1")
        if key not in self.cluster.objects:
            self.cluster.put(make_record(service))
        self.cache.put(self.cluster.objects[key])

    def find(self, name: str) -> Obj | None:
        key = ObjectKey(CONTROLLER_REVISION.kind, KEY.namespace, f"{name}-r1")
        found = self.cluster.objects.get(key)
        return None if found is None else find_newest([found])

    def read_counts(self, name: str) -> list[int]:
        """Return the counts in a service's written record."""
        found: Any = self.find(name)
        return [change["to"] for change in read_changes(found["changes"])]

    async def write(self) -> None:
        """Let a period be over, and write the due records."""
        self.now += PERIOD_SECONDS
        await self.priors.write_due()


@pytest.mark.parametrize("odd", NAMES)
async def test_a_record_that_cannot_be_written_keeps_no_other_from_being_written(
    odd: str, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = Odd(odd)
    stage = Stage(cluster)
    others = set(NAMES) - {odd}
    for name in NAMES:
        stage.put(make(name, 1))
    await stage.priors.write_due()
    assert {name for name in NAMES if stage.find(name)} == others
    for name in NAMES:
        stage.put(make(name, 1, 2, version=2))
    await stage.write()
    assert [stage.read_counts(name) for name in sorted(others)] == [[1, 2], [1, 2]]
    await stage.priors.write_due()
    assert cluster.num_tries == 2, "it waits for its period too"
    for name in NAMES:
        stage.put(make(name, 1, 2, 3, version=3))
    await stage.priors.leave()
    assert [stage.read_counts(name) for name in sorted(others)] == [[1, 2, 3], [1, 2, 3]]
    errors = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert {str(record.args[0]) for record in errors if record.args} == {f"{KEY.namespace}/{odd}"}
    assert all(record.exc_info for record in errors)


@pytest.mark.parametrize("odd", NAMES)
async def test_a_status_that_cannot_be_read_keeps_no_record_of_others_from_being_written(
    odd: str, caplog: pytest.LogCaptureFixture
) -> None:
    stage = Stage(FakeCluster())
    for name in NAMES:
        service = make(name, 1)
        if name == odd:
            service["status"]["scaling"]["lastChanges"] = [{"at": "then"}]
        stage.put(service)
    for _ in range(3):
        await stage.priors.write_due()
    assert caplog.text.count(f"{KEY.namespace}/{odd}: the leader cannot read") == 1
    assert {name for name in NAMES if stage.find(name)} == set(NAMES) - {odd}
    for name in set(NAMES) - {odd}:
        stage.put(make(name, 1, 2, version=2))
    await stage.priors.leave()
    assert all(stage.read_counts(name) == [1, 2] for name in set(NAMES) - {odd})


async def test_a_service_made_anew_begins_without_the_record_of_the_one_before() -> None:
    """Both happen between two passes, as by `kubectl replace --force`; garbage collection comes later."""
    stage = Stage(FakeCluster())
    stage.put(make("a", 8, uid="old"))
    await stage.priors.write_due()
    before = stage.find("a")
    stage.cache.forget(make("a", uid="old", version=2))
    stage.put(make("a", 2, uid="new", version=3))
    await stage.write()
    assert stage.find("a") == before
    stage.cluster.remove(CONTROLLER_REVISION, KEY.namespace, "a-r1")
    stage.put(make("a", 2, uid="new", version=4))
    await stage.write()
    assert stage.read_counts("a") == [2]


async def test_what_is_read_for_a_service_that_was_made_anew_meanwhile_is_not_the_new_ones() -> None:
    stage = Stage(FakeCluster())
    stage.put(make("a", 8, uid="old"))
    await stage.priors.write_due()
    stage.put(make("a", 8, uid="old"))
    fetch = stage.cluster.fetch

    async def fetch_late(kind: Kind, namespace: str, name: str) -> Obj | None:
        stage.cluster.fetch = fetch  # type: ignore[method-assign]
        found = await fetch(kind, namespace, name)
        stage.cluster.remove(CONTROLLER_REVISION, namespace, name)
        stage.put(make("a", 2, uid="new", version=3))
        await stage.priors.write_due()  # the new one's first
        return found

    stage.cluster.fetch = fetch_late  # type: ignore[method-assign]
    await stage.priors.recall(ServiceKey(KEY.namespace, "a"))
    stage.put(make("a", 2, 3, uid="new", version=4))
    await stage.write()
    assert stage.read_counts("a") == [2, 3]
