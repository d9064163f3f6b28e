"""The gateway's HTTP routes: probes, models and the proxy for clients; metrics and loads for others."""

import json
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any

from aiohttp import web

from millrace_gateway.errors import RequestRefusedError
from millrace_gateway.front.cors import add_cors
from millrace_gateway.front.proxy import Proxy
from millrace_gateway.lifecycle import Lifecycle, Phase
from millrace_gateway.report.metrics import CONTENT_TYPE, Metrics
from millrace_gateway.report.stream import Reporting
from millrace_gateway.route.catalogue import Catalogue, Route
from millrace_gateway.route.routing import find_model
from millrace_gateway.settings import Settings
from millrace_runtime.contract import PATH_LIVE, PATH_LOADS, PATH_METRICS, PATH_READY
from millrace_runtime.cors import CorsPolicy


class Surface:
    """The handlers of all paths that the gateway answers itself."""

    def __init__(
        self,
        catalogue: Catalogue,
        proxy: Proxy,
        metrics: Metrics,
        lifecycle: Lifecycle,
        settings: Settings,
    ) -> None:
        self._catalogue = catalogue
        self._proxy = proxy
        self._metrics = metrics
        self._lifecycle = lifecycle
        self._settings = settings

    async def report_live(self, _request: web.Request) -> web.Response:
        """Answer 200: the event loop is alive."""
        return web.Response(text="ok\n")

    async def report_ready(self, _request: web.Request) -> web.Response:
        """Answer 200 while the gateway serves, else 503 with the reason."""
        phase = self._lifecycle.phase
        return web.Response(text=f"{phase.value}\n", status=200 if phase is Phase.SERVING else 503)

    async def report_metrics(self, _request: web.Request) -> web.Response:
        """Answer with the metrics in Prometheus' text format."""
        return web.Response(body=self._metrics.render(), headers={"Content-Type": CONTENT_TYPE})

    async def list_models(self, request: web.Request) -> web.Response:
        """Answer with the model of the Host's service, else with the public names.

        OpenAI's clients accept an empty list.
        """
        try:
            route = self._proxy.route_host(request).route
        except RequestRefusedError as refusal:
            return self._proxy.refuse(refusal)
        if route:
            return _answer(
                {"object": "list", "data": [describe_model(route.served_name, route, is_owned=True)]}
            )
        is_open = self._settings.list_all_models
        models = self._catalogue.list_models() if is_open else self._catalogue.list_pinned()
        data = [describe_model(name, route, is_owned=is_open) for name, route in models.items()]
        return _answer({"object": "list", "data": data})

    async def retrieve_model(self, request: web.Request) -> web.Response:
        """Answer with one model by its name."""
        name = request.match_info["model"]
        try:
            rule = self._proxy.route_host(request)
            route = find_model(self._catalogue, name, rule)
        except RequestRefusedError as refusal:
            return self._proxy.refuse(refusal)
        is_owned = rule.route is not None or self._settings.list_all_models
        return _answer(describe_model(name, route, is_owned=is_owned))


def create_app(surface: Surface, proxy: Proxy, allowed_origins: Collection[str]) -> web.Application:
    """Return the application for clients. Run it with `handler_cancellation`: a client may disconnect."""
    app = web.Application()
    if allowed_origins:
        add_cors(app, CorsPolicy(allowed_origins))
    app.router.add_get(PATH_LIVE, surface.report_live)
    app.router.add_get(PATH_READY, surface.report_ready)
    app.router.add_get("/v1/models", surface.list_models)
    app.router.add_get("/v1/models/{model:.+}", surface.retrieve_model)
    app.router.add_route("*", "/v1/{path:.*}", proxy.handle)
    return app


def create_inner_app(surface: Surface, reporting: Reporting) -> web.Application:
    """Return the application of the inner port. It shows all tenants' services, so it is not for clients."""
    app = web.Application()
    app.router.add_get(PATH_METRICS, surface.report_metrics)
    app.router.add_get(PATH_LOADS, reporting.handle)
    return app


def describe_model(name: str, route: Route, *, is_owned: bool) -> dict[str, Any]:
    """Return a model in the format of OpenAI's API. Its owner is its namespace, if the client may know it."""
    oldest = route.services[0]
    return {
        "id": name,
        "object": "model",
        "created": int(datetime.fromisoformat(oldest.created).timestamp()) if oldest.created else 0,
        "owned_by": oldest.key.namespace if is_owned else "millrace",
    }


def _answer(document: Mapping[str, Any]) -> web.Response:
    return web.Response(body=json.dumps(document).encode(), content_type="application/json")
