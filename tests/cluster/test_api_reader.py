"""Reading objects over one connection, through what may happen to it."""

import http.client
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from e2e.cluster.api_reader import ApiReader, find_condition, has_condition, is_observed
from e2e.cluster.errors import PartFailedError
from e2e.cluster.product import describe_component, describe_example

pytestmark = pytest.mark.reads("e2e/cluster")


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        body = b'{"items": [1, 2]}' if "pods" in self.path else b"{}"
        self.send_response(404 if "absent" in self.path else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = "last" in self.path

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def reader() -> Iterator[ApiReader]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    found = ApiReader(server.server_port, ssl.create_default_context())
    found._connection = http.client.HTTPConnection("127.0.0.1", server.server_port)
    yield found
    found.close()
    server.shutdown()
    server.server_close()
    thread.join()


def test_lists_and_refusals(reader: ApiReader) -> None:
    assert reader.list("/api/v1/pods", "a=b") == [1, 2]
    with pytest.raises(PartFailedError, match="GET /absent: 404"):
        reader.get("/absent")
    assert reader.get("/there") == {}


def test_a_connection_that_was_closed_while_idle_is_opened_again(reader: ApiReader) -> None:
    for _ in range(3):
        assert reader.get("/last") == {}


def test_nobody_there_is_a_failure_of_the_part() -> None:
    reader = ApiReader(1, ssl.create_default_context())
    with pytest.raises(PartFailedError, match="kube-apiserver: GET /x: ConnectionRefusedError"):
        reader.get("/x")


def test_a_condition_that_is_not_there_is_not_true() -> None:
    found = {"metadata": {"generation": 2}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    assert has_condition(found, "Ready")
    assert not has_condition(found, "Progressing")
    assert find_condition({}, "Ready") == {}
    assert not is_observed(found)


class Fixed:
    """A cluster that answers with one fixed object, and with no pods."""

    def __init__(self, found: dict[str, object]) -> None:
        self.api: Any = self
        self.found = found

    def get(self, _: str) -> dict[str, object]:
        return self.found

    def list(self, *_: str) -> list[dict[str, object]]:
        return []


def test_pods_of_the_former_template_are_not_those_that_are_awaited() -> None:
    deployment = {"metadata": {"generation": 2}, "spec": {"replicas": 2}}
    done = {"observedGeneration": 2, "replicas": 2, "updatedReplicas": 2, "availableReplicas": 2}
    for changed in ({"observedGeneration": 1}, {"updatedReplicas": 1}, {"availableReplicas": 1}):
        found: Any = Fixed({**deployment, "status": done | changed})
        assert describe_component(found, "operator").startswith("operator: ")
    found = Fixed({**deployment, "status": done})
    assert describe_component(found, "operator") == ""


def test_an_example_that_is_ready_with_its_former_spec_is_waited_for() -> None:
    def example(generation: int, progressing: str) -> Any:
        conditions = [
            {"type": "Ready", "status": "True"},
            {"type": "Progressing", "status": progressing, "reason": "RollingOut", "message": "new pods"},
        ]
        status = {"observedGeneration": 2, "conditions": conditions}
        return Fixed({"metadata": {"generation": generation}, "status": status})

    assert describe_example(example(3, "False")) == "stories: the operator has not seen this change yet"
    assert describe_example(example(2, "True")) == "stories: RollingOut: new pods"
    assert describe_example(example(2, "False")) == ""
