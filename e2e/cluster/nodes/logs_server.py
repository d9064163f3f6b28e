"""The kubelet port: container logs for `kubectl logs`; a clear no to exec, attach and port-forward."""

import contextlib
import ssl
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from aiohttp import web

from e2e.cluster.nodes.errors import SettingsError
from e2e.cluster.nodes.logs import ContainerLogs, LogFile, LogQuery, stream_log

FindLogs = Callable[[str, str, str], ContainerLogs | None]


class LogsServer:
    """Answers the API server."""

    def __init__(self, find_logs: FindLogs) -> None:
        self._find_logs = find_logs
        self._runner: web.AppRunner | None = None

    async def start(self, address: str, port: int, context: ssl.SSLContext) -> int:
        """Listen; the port, which the system chooses for 0."""
        app = web.Application()
        app.router.add_get("/healthz", _healthz)
        app.router.add_get("/containerLogs/{namespace}/{pod}/{container}", self._logs)
        for path in ("/exec/{rest:.*}", "/attach/{rest:.*}", "/portForward/{rest:.*}", "/run/{rest:.*}"):
            app.router.add_route("*", path, _refuse)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, address, port, ssl_context=context)
        try:
            await site.start()
        except OSError as error:
            raise SettingsError(
                f"cannot listen on {address}:{port}: {error.strerror}; give --kubelet-port"
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
    with contextlib.suppress(ConnectionError):  # whoever follows a log may go at any time
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


def make_certificate(folder: Path, address: str) -> ssl.SSLContext:
    """A self-signed certificate for the kubelet port; API servers do not verify it unless told to."""
    folder.mkdir(parents=True, exist_ok=True)
    key, certificate = folder / "kubelet.key", folder / "kubelet.crt"
    if not certificate.exists():
        try:
            subprocess.run(
                [
                    *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
                    *("-nodes", "-keyout", str(key), "-out", str(certificate)),
                    *("-days", "3650", "-subj", f"/CN={address}"),
                ],
                check=True,
                capture_output=True,
            )
        except (OSError, subprocess.CalledProcessError) as error:
            raise SettingsError(
                f"cannot make the kubelet port's certificate with openssl ({error}); "
                "install openssl or give --tls-certificate and --tls-key"
            ) from error
    return load_certificate(certificate, key)


def load_certificate(certificate: Path, key: Path) -> ssl.SSLContext:
    """A server context of two PEM files."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context
