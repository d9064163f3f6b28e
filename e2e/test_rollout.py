"""Change a service under load, break it, mend it: its clients notice nothing."""

import json

from e2e.load import assert_unharmed, load_beside, long_streams_beside
from e2e.plugin import ask
from e2e.service import Service

RATE = 2.0


def uids(service: Service) -> set[str]:
    return {pod["metadata"]["uid"] for pod in service.pods()}


def num_restarts(service: Service) -> int:
    return sum(
        status["restartCount"] for pod in service.pods() for status in pod["status"]["containerStatuses"]
    )


def test_a_change_and_a_broken_one_harm_no_request(service: Service) -> None:
    service.spec["scaling"] |= {"minReplicas": 2, "maxReplicas": 2}
    service.apply()
    service.wait_ready()
    first, revision = uids(service), service.status()["currentRevision"]
    with load_beside(service, RATE) as load, long_streams_beside(service) as long:
        service.spec["engine"]["maxSequences"] = 8
        service.apply()
        service.wait_ready(120)
        second = uids(service)
        assert service.status()["currentRevision"] != revision
        assert not first & second
        assert len(second) == 2

        service.spec["model"]["uri"] = "file:///models/no-such-model"
        service.apply()
        service.wait_for("Degraded", lambda: service.condition("Degraded").get("status") == "True", 90)
        assert service.condition("Ready")["status"] == "True"
        assert "/models/no-such-model" in service.condition("Degraded")["message"]
        assert second <= uids(service)

        service.spec["model"]["uri"] = "file:///models/stories"
        service.apply()
        service.wait_ready()
        assert service.condition("Degraded")["status"] == "False"
        assert uids(service) == second
        assert num_restarts(service) == 0
    assert_unharmed(load, long)


def test_a_rollout_at_the_quotas_edge_harms_no_request(service: Service) -> None:
    service.spec["scaling"] |= {"minReplicas": 2, "maxReplicas": 2}
    service.apply()
    service.wait_ready()
    first = uids(service)
    quota = json.dumps({"spec": {"hard": {"pods": "2"}}})
    service.kubectl("patch", "resourcequota", "team", "--type=merge", "-p", quota)
    service.wait_for("no room", lambda: not has_room(service), 30)
    with load_beside(service, RATE) as load:
        service.spec["engine"]["maxSequences"] = 8
        service.apply()
        service.wait_ready(180)
    assert not uids(service) & first
    assert len(uids(service)) == 2
    assert_unharmed(load)


def has_room(service: Service) -> bool:
    """Whether the quota in force admits another pod."""
    status = service.get("resourcequota", "team")["status"]
    return int(status["used"]["pods"]) < int(status["hard"]["pods"])


def test_a_late_rollout_is_rolled_back_and_touches_nothing_that_serves(service: Service) -> None:
    service.spec["scaling"] |= {"minReplicas": 2, "maxReplicas": 2}
    service.spec["rollout"] = {"progressDeadline": "20s"}
    service.apply()
    service.wait_ready()
    first, revision = uids(service), service.status()["currentRevision"]
    with load_beside(service, RATE) as load:
        service.spec["model"]["uri"] = "file:///models/no-such-model"
        service.apply()
        service.wait_for(
            "rolled back", lambda: service.condition("Degraded").get("reason") == "RolledBack", 90
        )
        service.wait_for("the pods of before", lambda: uids(service) == first, 60)
        status = service.status()
        assert (status["currentRevision"], status["readyReplicas"]) == (revision, 2)
        assert status["rejectedRevision"]["revision"] == status["updateRevision"] != revision
        assert "/models/no-such-model" in service.condition("Degraded")["message"]

        service.spec["engine"]["maxSequences"] = 8
        service.spec["model"]["uri"] = "file:///models/stories"
        service.spec["rollout"] = {"progressDeadline": "10m"}  # a busy machine may take long
        service.apply()
        service.wait_ready(120)
        assert "rejectedRevision" not in service.status()
        assert not uids(service) & first
    assert_unharmed(load)


def test_a_canary_is_promoted_or_aborted_by_hand(service: Service) -> None:
    service.spec["scaling"] |= {"minReplicas": 2, "maxReplicas": 2}
    service.spec["rollout"] = {"canary": {"promotion": "Manual"}}
    service.apply()
    service.wait_ready()
    first = uids(service)
    with load_beside(service, RATE) as load:
        canary = wait_for_canary(service, {"maxSequences": 8})
        assert len(canary - first) == 1
        assert "is promoted" in ask(service, "promote")
        service.wait_ready(120)
        second = uids(service)
        assert canary - first < second
        assert len(second) == 2

        revision = service.status()["currentRevision"]
        wait_for_canary(service, {"maxSequences": 16})
        assert "is aborted" in ask(service, "abort")
        service.wait_for(
            "rolled back", lambda: service.condition("Degraded").get("reason") == "RolledBack", 30
        )
        service.wait_for("two pods", lambda: len(uids(service)) == 2, 60)
        assert service.status()["currentRevision"] == revision
        assert len(uids(service) & second) >= 1
    assert_unharmed(load)


def wait_for_canary(service: Service, engine: dict[str, int]) -> set[str]:
    """Change the engine, and return the pods once one of the new revision serves beside one of the old."""
    service.spec["engine"] |= engine
    service.apply()
    service.wait_for(
        "a canary", lambda: service.condition("Progressing").get("reason") == "AwaitingPromotion", 120
    )
    service.wait_for("two pods", lambda: len(uids(service)) == 2, 60)
    return uids(service)
