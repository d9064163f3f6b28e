"""A small external-metrics adapter: the HPA asks it through the API server, and it asks Prometheus or a test.

It knows one metric: the requests in flight at a service's replicas, which run or wait there.
"""

import http.client
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlencode, urlsplit

from millrace_runtime.contract import METRIC_RUNNING, METRIC_WAITING

GROUP, VERSION = "external.metrics.k8s.io", "v1beta1"
ROOT = f"/apis/{GROUP}/{VERSION}"
METRIC = "requests-in-flight"
LABEL = "service"
"""The HPA's selector has it, with the service's name."""
TIMEOUT_SECONDS = 5.0

Ask = Callable[[str], float | None]
"""Answers a query that has one number; None where Prometheus has no series of it."""
Object = dict[str, Any]


class Reply(NamedTuple):
    """An HTTP status and the JSON that goes with it."""

    status: int
    body: Object


class Subject(NamedTuple):
    """The service whose requests are asked for."""

    namespace: str
    service: str


def answer(path: str, ask: Ask, now: datetime) -> Reply:
    """Answer a GET of the API server's. `ask` may raise OSError or HTTPException."""
    if path.partition("?")[0] == ROOT:
        return Reply(200, render_discovery())
    subject = parse_subject(path)
    if subject is None:
        return Reply(404, render_failure(404, f"there is only the metric {METRIC}, by the label {LABEL}"))
    try:
        return Reply(200, render_values(ask(render_query(subject)), now))
    except (OSError, http.client.HTTPException) as error:
        return Reply(503, render_failure(503, f"Prometheus: {error!r}"))


def parse_subject(path: str) -> Subject | None:
    """Return of which service the metric is asked for; None where it is another question."""
    url = urlsplit(path)
    words = url.path.removeprefix(f"{ROOT}/").split("/")
    selector = parse_qs(url.query).get("labelSelector", [""])[0]
    label, _, service = selector.partition("=")
    is_ours = len(words) == 3 and (words[0], words[2], label) == ("namespaces", METRIC, LABEL)
    return Subject(words[1], service) if is_ours and service else None


def render_query(subject: Subject) -> str:
    """Return the PromQL of the requests that a service's replicas run, and of those that wait there."""
    series = f'{{namespace="{subject.namespace}",service="{subject.service}"}}'
    return f"sum({METRIC_RUNNING}{series}) + sum({METRIC_WAITING}{series})"


def render_discovery() -> Object:
    """Return the API's resources, by which the API server sees that the adapter is there."""
    metric = {"name": METRIC, "singularName": "", "namespaced": True, "verbs": ["get"]}
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": f"{GROUP}/{VERSION}",
        "resources": [{**metric, "kind": "ExternalMetricValueList"}],
    }


def render_values(value: float | None, now: datetime) -> Object:
    """Return the metric's list. Without a value it is empty, and the HPA then leaves the count as it is."""
    at = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    known = {} if value is None else {"value": f"{round(1000 * value)}m"}
    item = {"metricName": METRIC, "metricLabels": {}, "timestamp": at, **known}
    kind = {"kind": "ExternalMetricValueList", "apiVersion": f"{GROUP}/{VERSION}"}
    return {**kind, "metadata": {}, "items": [item] if known else []}


def render_failure(status: int, message: str) -> Object:
    """Return Kubernetes' Status object for a failure."""
    failure = {"kind": "Status", "apiVersion": "v1", "status": "Failure"}
    return {**failure, "code": status, "message": message}


def read_prometheus(port: int, query: str) -> float | None:
    """Ask the Prometheus on 127.0.0.1 for one number. Raises OSError or HTTPException."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_SECONDS)) as connection:
        connection.request("GET", f"/api/v1/query?{urlencode({'query': query})}")
        response = connection.getresponse()
        body = response.read()
    if response.status != 200:
        raise http.client.HTTPException(f"{response.status} {body[:200].decode(errors='replace')}")
    return parse_number(json.loads(body))


def parse_number(found: Object) -> float | None:
    """Return the number of an answer of Prometheus'; None where it has no series."""
    result = found["data"]["result"]
    return float(result[0]["value"][1]) if result else None


@contextmanager
def serving(ask: Ask, certificate: Path, key: Path) -> Iterator[int]:
    """Serve the API over TLS on 127.0.0.1 while entered; yield the port."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _make_handler(ask))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _make_handler(ask: Ask) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        """Answers the API server."""

        def do_GET(self) -> None:
            """Send what `answer` says."""
            reply = answer(self.path, ask, datetime.now(UTC))
            body = json.dumps(reply.body).encode()
            self.send_response(reply.status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    return Handler
