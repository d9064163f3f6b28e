"""The kubelet port: container logs for `kubectl logs`; a clear no to exec, attach and port-forward."""

import contextlib
import ssl
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from aiohttp import web

from e2e.cluster.nodes.errors import SettingsError
from e2e.cluster.nodes.logs import ContainerLogs, LogFile, LogQuery, stream_log


class CertificateFiles(NamedTuple):
    """The PEM files of a server's certificate."""

    certificate: Path
    key: Path


FindLogs = Callable[[str, str, str], ContainerLogs | None]


class LogsServer:
    """Answers the API server."""

    def __init__(self, find_logs: FindLogs) -> None:
        self._find_logs = find_logs
        self._runner: web.AppRunner | None = None

    async def start(self, address: str, files: CertificateFiles) -> int:
        """Listen on a free port, and return it. Raises SettingsError where that can't be done."""
        app = web.Application()
        app.router.add_get("/healthz", _healthz)
        app.router.add_get("/containerLogs/{namespace}/{pod}/{container}", self._logs)
        for path in ("/exec/{rest:.*}", "/attach/{rest:.*}", "/portForward/{rest:.*}", "/run/{rest:.*}"):
            app.router.add_route("*", path, _refuse)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, address, 0, ssl_context=load_certificate(files))
        try:
            await site.start()
        except OSError as error:
            raise SettingsError(
                f"cannot listen on {address}: {error.strerror}; give another --kubelet-address"
            ) from error
        chosen: int = self._runner.addresses[0][1]
        return chosen

    async def close(self) -> None:
        """Stop listening."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _logs(self, request: web.Request) -> web.StreamResponse:
        place = request.match_info
        found = self._find_logs(place["namespace"], place["pod"], place["container"])
        if found is None:
            return web.Response(
                status=404, text=f"no container {place['container']} of pod {place['pod']} is here"
            )
        wants_previous = request.query.get("previous") == "true"
        if len(found.paths) < (2 if wants_previous else 1):
            which = "previous terminated container" if wants_previous else "container"
            why = f"{which} {place['container']!r} in pod {place['pod']!r} not found or not started yet"
            return web.Response(status=400, text=why)
        if wants_previous:
            return await _stream(request, found.paths[-2], None)
        return await _stream(request, found.paths[-1], found.live)


async def _stream(request: web.Request, path: Path, live: LogFile | None) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/plain"})
    await response.prepare(request)
    with contextlib.suppress(ConnectionError):  # a client that follows a log may leave at any time
        async for chunk in stream_log(path, live, parse_query(dict(request.query)), datetime.now(UTC)):
            await response.write(chunk)
        await response.write_eof()
    return response


async def _healthz(_: web.Request) -> web.Response:
    return web.Response(text="ok")


async def _refuse(request: web.Request) -> web.Response:
    what = request.path.split("/")[1]
    return web.Response(
        status=501, text=f"a process node has no {what}; its pods are processes of this machine"
    )


def parse_query(query: dict[str, str]) -> LogQuery:
    """The parameters of a kubelet's containerLogs."""

    def number(name: str) -> int | None:
        return int(query[name]) if query.get(name) else None

    since = query.get("sinceTime")
    return LogQuery(
        follow=query.get("follow") == "true",
        timestamps=query.get("timestamps") == "true",
        tail_lines=number("tailLines"),
        since_seconds=number("sinceSeconds"),
        since_time=datetime.fromisoformat(since) if since else None,
        limit_bytes=number("limitBytes"),
    )


def load_certificate(files: CertificateFiles) -> ssl.SSLContext:
    """Return a server's context of the two files. Raises SettingsError where they can't be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(files.certificate, files.key)
    except OSError as error:  # ssl.SSLError is one
        raise SettingsError(f"--tls-certificate {files.certificate} can't be used: {error}") from error
    return context
