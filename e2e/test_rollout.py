"""Change a service under load, break it, mend it: its clients notice nothing."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from e2e.service import Service
from e2e.traffic import Load, Phase, Stream

RATE = 2.0
LOAD_SECONDS = 75.0


@contextmanager
def load_beside(service: Service, seconds: float) -> Iterator[list[Stream]]:
    """Send requests from another thread while the test goes on; all have ended after the block."""
    load = Load(service.target(max_tokens=24))
    thread = threading.Thread(target=lambda: asyncio.run(load.run([Phase(seconds, RATE)])))
    thread.start()
    try:
        yield load.streams
    finally:
        thread.join()


def assert_unharmed(streams: list[Stream]) -> None:
    failed = [s for s in streams if s.is_refused or s.is_truncated]
    assert not failed, failed[:3]


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
    with load_beside(service, LOAD_SECONDS) as streams:
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
    assert len(streams) > RATE * LOAD_SECONDS / 2
    assert_unharmed(streams)
