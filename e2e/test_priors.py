"""What was learned outlives the operator, by the chart's own rights on a real API server."""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from e2e.cluster.product import NAMESPACE
from e2e.leader import find_leader
from e2e.plugin import explain
from e2e.service import Service
from millrace_operator.api.change_record import find_newest
from testing.traffic import Load, Phase

LEARN_SECONDS = 300.0
"""Of light load at most. Two windows of steps are enough on a quiet machine (62 s on two cores); where the
machine's other work makes steps uneven, the fit is trusted later."""


def read_data(service: Service) -> dict[str, str]:
    """Return what was learned, as the operator has written it down; empty before that."""
    path = f"/apis/apps/v1/namespaces/{service.namespace}/controllerrevisions"
    return find_newest(service.cluster.api.list(path)) or {}


@contextmanager
def light_load(service: Service) -> Iterator[None]:
    load = Load(service.target(max_tokens=16))
    thread = threading.Thread(target=lambda: asyncio.run(load.run([Phase(LEARN_SECONDS, 1.0)], seed=1)))
    thread.start()
    try:
        yield
    finally:
        load.end()
        thread.join()


def read_reason(service: Service) -> str:
    """The reason in status. One that changes alone is written once a minute at most."""
    return str(service.status()["scaling"]["reason"])


def test_another_leader_goes_on_with_what_was_learned(service: Service) -> None:
    service.spec["scaling"] = {"mode": "Automatic", "minReplicas": 1, "maxReplicas": 2}
    service.apply()
    service.wait_ready()
    with light_load(service):
        service.wait_for("written down", lambda: "prior" in read_data(service), LEARN_SECONDS)
        service.wait_for("no longer learning", lambda: read_reason(service) != "Learning", 90)
    prior: dict[str, Any] = json.loads(read_data(service)["prior"])
    assert prior["revision"] == service.status()["currentRevision"]
    assert prior["model"]["samples"] >= 2

    leader = find_leader(service.cluster)
    service.cluster.kubectl("-n", NAMESPACE, "delete", "pod", leader, "--wait=false")
    service.wait_for("led by another", lambda: find_leader(service.cluster) not in {"", leader}, 40)
    log = ("-n", NAMESPACE, "logs", find_leader(service.cluster))
    told = "stories: the leader continues with the learned model of earlier leaders"
    service.wait_for("taken up", lambda: told in service.cluster.kubectl(*log), 20)
    assert read_reason(service) != "Learning"

    service.spec["scaling"]["minReplicas"] = 2
    service.apply()
    service.wait_for("scaled", lambda: service.status()["scaling"]["desiredReplicas"] == 2, 30)
    assert "1 -> 2" in explain(service, "--since", "1h")
