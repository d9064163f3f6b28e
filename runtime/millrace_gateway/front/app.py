"""The gateway's paths: probes, models and the proxy for clients; metrics and loads for others."""

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from millrace_gateway.errors import BadMethodError, ForbiddenOriginError, NoPathError, RequestRefusedError
from millrace_gateway.front.guard import Guard
from millrace_gateway.front.model_list import ModelList
from millrace_gateway.front.proxy import Proxy
from millrace_gateway.http.head import Headers
from millrace_gateway.http.request import Request
from millrace_gateway.lifecycle import Lifecycle, Phase
from millrace_gateway.report.metrics import CONTENT_TYPE, Metrics
from millrace_gateway.report.stream import Reporting
from millrace_gateway.route.catalogue import Catalogue
from millrace_gateway.settings import Settings
from millrace_runtime.contract import PATH_LIVE, PATH_LOADS, PATH_METRICS, PATH_READY, PATHS_WORK
from millrace_runtime.cors import CorsPolicy

_API = "/v1/"
_MODELS = "/v1/models"
PATH_USAGE = "/v1/usage"
_JSON: Headers = [(b"content-type", b"application/json")]
_TEXT: Headers = [(b"content-type", b"text/plain; charset=utf-8")]
Handle = Callable[[Request], Awaitable[None]]


class Surface:
    """The handlers of all paths that the gateway answers itself."""

    def __init__(
        self,
        catalogue: Catalogue,
        proxy: Proxy,
        *,
        metrics: Metrics,
        lifecycle: Lifecycle,
        guard: Guard,
        settings: Settings,
    ) -> None:
        self._guard = guard
        self._models = ModelList(catalogue, shows_all=settings.list_all_models)
        self._proxy = proxy
        self._metrics = metrics
        self._lifecycle = lifecycle
        self._cors = CorsPolicy(settings.allowed_origins)
        self._has_cors = bool(settings.allowed_origins)

    async def handle(self, request: Request) -> None:
        """Answer a client's request."""
        path = request.path
        if request.tunnel and not self._may_connect(request):
            refusal = ForbiddenOriginError("Pages of this origin may not open a WebSocket here.")
            self._proxy.refuse(request, refusal)
            return
        if self._has_cors and self._answers_preflight(request):
            return
        if _is_for_replicas(path):
            await self._proxy.handle(request)
            return
        try:
            self._answer_own(request, path)
        except RequestRefusedError as refusal:
            self._proxy.refuse(request, refusal)

    def find_cors(self, request: Request) -> Headers:
        """Return the headers by which browsers let a page read the answer."""
        if not self._has_cors:
            return []
        return _encode(self._cors.answer_headers(_decode(request.header(b"origin"))))

    def answer_metrics(self, request: Request) -> None:
        """Answer with the metrics in Prometheus' text format."""
        request.respond(200, self._metrics.render(), [(b"content-type", CONTENT_TYPE.encode())])

    def _may_connect(self, request: Request) -> bool:
        """Whether the client is no web page, or an allowed one: browsers do not ask before a WebSocket.

        Some clients that are no web page name the server itself as their origin.
        """
        origin = _decode(request.header(b"origin"))
        return origin is None or origin.partition("//")[2] == request.host or self._cors.allows(origin)

    def _answer_own(self, request: Request, path: str) -> None:
        if path == PATH_LIVE:
            _require_get(request)
            request.respond(200, b"ok\n", _TEXT)
        elif path == PATH_READY:
            _require_get(request)
            phase = self._lifecycle.phase
            request.respond(200 if phase is Phase.SERVING else 503, f"{phase.value}\n".encode(), _TEXT)
        elif path == PATH_USAGE:
            _require_get(request)
            _respond(request, self._guard.describe_usage(request, self._proxy.route_host(request).route))
        elif path == _MODELS:
            _require_get(request)
            _respond(request, self._models.list_models(self._proxy.route_host(request)))
        elif path.startswith(f"{_MODELS}/"):
            _require_get(request)
            name = path.removeprefix(f"{_MODELS}/")
            _respond(request, self._models.find_model(name, self._proxy.route_host(request)))
        else:
            raise NoPathError(f"There is nothing at {path[:200]!r}: the API begins with /v1/.")

    def _answers_preflight(self, request: Request) -> bool:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in request.headers}
        found = self._cors.preflight_headers(request.method.decode(), headers)
        if found is None:
            return False
        own = self._cors.answer_headers(headers.get("origin"))
        request.respond(204, b"", _encode({name: value for name, value in found.items() if name not in own}))
        return True


class InnerSurface:
    """The handlers of the inner port. It shows all tenants' services, so it is not for clients."""

    def __init__(self, surface: Surface, reporting: Reporting) -> None:
        self._surface = surface
        self._reporting = reporting

    async def handle(self, request: Request) -> None:
        """Answer a request of the platform."""
        if request.path == PATH_METRICS:
            self._surface.answer_metrics(request)
        elif request.path == PATH_LOADS:
            await self._reporting.handle(request)
        else:
            refusal = NoPathError(f"There is nothing at {request.path[:200]!r}.")
            request.respond(refusal.status, refusal.body(), refusal.lines)


def _is_for_replicas(path: str) -> bool:
    """Whether replicas answer at this path."""
    if path.startswith(_API):
        return not path.startswith(_MODELS) and path != PATH_USAGE
    return path in PATHS_WORK  # vLLM's /tokenize and /detokenize


def _require_get(request: Request) -> None:
    if request.method not in (b"GET", b"HEAD"):
        raise BadMethodError(f"Only GET works at {request.path[:200]!r}.")


def _respond(request: Request, document: Mapping[str, Any]) -> None:
    request.respond(200, json.dumps(document).encode(), _JSON)


def _encode(headers: Mapping[str, str]) -> Headers:
    return [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]


def _decode(value: bytes | None) -> str | None:
    return None if value is None else value.decode("latin-1")
