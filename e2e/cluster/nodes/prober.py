"""Asks a running container: the three kinds of question of a probe or of a lifecycle hook."""

import asyncio
from collections.abc import Mapping
from typing import Any

import aiohttp

from e2e.cluster.nodes.errors import PodRefusedError
from e2e.cluster.nodes.sandbox import run_inside

Object = dict[str, Any]
ACTIONS = ("httpGet", "tcpSocket", "exec")


def resolve_port(port: int | str, container: Object) -> int:
    """Return a probe's port, given by its number or by its name in the container."""
    if isinstance(port, int) or port.isdigit():
        return int(port)
    for each in container.get("ports", ()):
        if each.get("name") == port:
            return int(each["containerPort"])
    raise PodRefusedError(
        "CreateContainerConfigError", f"a probe names port {port!r}, which the container has not"
    )


class Prober:
    """Asks one run of a container."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        container: Object,
        address: str,
        pid: int,
        env: Mapping[str, str],
    ) -> None:
        self._session = session
        self._container = container
        self._address = address
        self._pid = pid
        self._env = env

    async def ask(self, action: Object, timeout_seconds: float) -> str | None:
        """Return None when all is well, else what is wrong."""
        try:
            async with asyncio.timeout(timeout_seconds):
                return await self._perform(action, timeout_seconds)
        except TimeoutError:
            return f"no answer within {timeout_seconds:g} s"
        except (OSError, aiohttp.ClientError, PodRefusedError) as error:
            return str(error) or repr(error)

    async def _perform(self, action: Object, timeout_seconds: float) -> str | None:
        if "exec" in action:
            return await self._run(action["exec"]["command"], timeout_seconds)
        if "tcpSocket" in action:
            await self._connect(action["tcpSocket"])
            return None
        return await self._get(action["httpGet"])

    async def _run(self, command: list[str], timeout_seconds: float) -> str | None:
        result = await run_inside(self._pid, command, self._env, timeout_seconds)
        return None if result.exit_code == 0 else result.output or f"exit status {result.exit_code}"

    async def _connect(self, target: Object) -> None:
        port = resolve_port(target["port"], self._container)
        _, writer = await asyncio.open_connection(target.get("host") or self._address, port)
        writer.close()

    async def _get(self, target: Object) -> str | None:
        scheme, port = target.get("scheme", "HTTP").lower(), resolve_port(target["port"], self._container)
        path = "/" + target.get("path", "/").lstrip("/")
        url = f"{scheme}://{target.get('host') or self._address}:{port}{path}"
        headers = {each["name"]: each["value"] for each in target.get("httpHeaders", ())}
        headers = {"User-Agent": "kube-probe/1.34", "Connection": "close", **headers}
        async with self._session.get(url, headers=headers, ssl=False, allow_redirects=False) as response:
            if 200 <= response.status < 400:
                return None
            body = (await response.content.read(512)).decode(errors="replace").strip()
            return f"HTTP probe failed with statuscode: {response.status}{': ' + body if body else ''}"
