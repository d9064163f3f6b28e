"""Change a service under load, break it, mend it: its clients notice nothing.

Two replicas serve through all tests of the file, and each test begins with them.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from e2e.api_client import patch
from e2e.cluster.local_cluster import LocalCluster
from e2e.load import assert_unharmed, load_beside, long_streams_beside
from e2e.namespaces import path_of
from e2e.plugin import ask
from e2e.service import Service, service_in

RATE = 2.0
STORIES, NO_MODEL = "file:///models/stories", "file:///models/no-such-model"


@pytest.fixture(scope="module")
def pair(product: LocalCluster) -> Iterator[Service]:
    """A service of two replicas, not yet applied."""
    with service_in(product, "rollout") as found:
        found.spec["scaling"] |= {"minReplicas": 2, "maxReplicas": 2}
        yield found


@pytest.fixture
def served(pair: Service) -> Service:
    """Two replicas that serve one revision, whatever the test before has left."""
    pair.spec["model"]["uri"] = STORIES
    pair.spec.pop("rollout", None)
    pair.apply()
    pair.wait_ready()
    pair.wait_for("two pods", lambda: len(uids(pair)) == 2)
    return pair


def change_engine(service: Service) -> None:
    """Ask for an engine that no revision had before."""
    service.spec["engine"]["maxSequences"] -= 1


def uids(service: Service) -> set[str]:
    return {pod["metadata"]["uid"] for pod in service.pods()}


def num_restarts(service: Service) -> int:
    return sum(
        status["restartCount"] for pod in service.pods() for status in pod["status"]["containerStatuses"]
    )


def test_a_change_and_a_broken_one_harm_no_request(served: Service) -> None:
    first, revision = uids(served), served.status()["currentRevision"]
    with load_beside(served, RATE) as load, long_streams_beside(served) as long:
        change_engine(served)
        served.apply()
        served.wait_ready()
        second = uids(served)
        assert served.status()["currentRevision"] != revision
        assert not first & second
        assert len(second) == 2

        served.spec["model"]["uri"] = NO_MODEL
        served.apply()
        served.wait_for("Degraded", lambda: served.condition("Degraded").get("status") == "True")
        assert served.condition("Ready")["status"] == "True"
        assert "/models/no-such-model" in served.condition("Degraded")["message"]
        assert second <= uids(served)

        served.spec["model"]["uri"] = STORIES
        served.apply()
        served.wait_ready()
        assert served.condition("Degraded")["status"] == "False"
        assert uids(served) == second
        assert num_restarts(served) == 0
    assert_unharmed(load, long)


@contextmanager
def no_room(service: Service) -> Iterator[None]:
    """Let the quota admit no pod beside the two."""
    quota = f"{path_of(service.namespace)}/resourcequotas/team"
    before = service.get("resourcequota", "team")["spec"]
    patch(service.cluster, quota, {"spec": {"hard": {"pods": "2"}}})
    try:
        service.wait_for("no room", lambda: not has_room(service))
        yield
    finally:
        patch(service.cluster, quota, {"spec": before})


def test_a_rollout_at_the_quotas_edge_harms_no_request(served: Service) -> None:
    first = uids(served)
    with no_room(served), load_beside(served, RATE) as load:
        change_engine(served)
        served.apply()
        served.wait_ready()
    assert not uids(served) & first
    assert len(uids(served)) == 2
    assert_unharmed(load)


def has_room(service: Service) -> bool:
    """Whether the quota in force admits another pod."""
    status = service.get("resourcequota", "team")["status"]
    return int(status["used"]["pods"]) < int(status["hard"]["pods"])


def test_a_late_rollout_is_rolled_back_and_touches_nothing_that_serves(served: Service) -> None:
    first, revision = uids(served), served.status()["currentRevision"]
    with load_beside(served, RATE) as load:
        served.spec["rollout"] = {"progressDeadline": "20s"}
        served.spec["model"]["uri"] = NO_MODEL
        served.apply()
        served.wait_for("rolled back", lambda: served.condition("Degraded").get("reason") == "RolledBack")
        served.wait_for("the pods of before", lambda: uids(served) == first)
        status = served.status()
        assert (status["currentRevision"], status["readyReplicas"]) == (revision, 2)
        assert status["rejectedRevision"]["revision"] == status["updateRevision"] != revision
        assert "/models/no-such-model" in served.condition("Degraded")["message"]

        change_engine(served)
        served.spec["model"]["uri"] = STORIES
        served.spec["rollout"] = {"progressDeadline": "10m"}  # a busy machine may take long
        served.apply()
        served.wait_ready()
        assert "rejectedRevision" not in served.status()
        assert not uids(served) & first
    assert_unharmed(load)


def test_a_canary_is_promoted_or_aborted_by_hand(served: Service) -> None:
    first = uids(served)
    with load_beside(served, RATE) as load:
        served.spec["rollout"] = {"canary": {"promotion": "Manual"}}
        canary = wait_for_canary(served)
        assert len(canary - first) == 1
        assert "is promoted" in ask(served, "promote")
        served.wait_ready()
        second = uids(served)
        assert canary - first < second
        assert len(second) == 2

        revision = served.status()["currentRevision"]
        wait_for_canary(served)
        assert "is aborted" in ask(served, "abort")
        served.wait_for("rolled back", lambda: served.condition("Degraded").get("reason") == "RolledBack")
        served.wait_for("two pods", lambda: len(uids(served)) == 2)
        assert served.status()["currentRevision"] == revision
        assert len(uids(served) & second) >= 1
    assert_unharmed(load)


def wait_for_canary(service: Service) -> set[str]:
    """Change the engine, and return the pods once one of the new revision serves beside one of the old."""
    change_engine(service)
    service.apply()
    service.wait_for(
        "a canary", lambda: service.condition("Progressing").get("reason") == "AwaitingPromotion", 120
    )
    service.wait_for("two pods", lambda: len(uids(service)) == 2)
    return uids(service)
