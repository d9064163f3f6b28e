"""Startup, readiness and liveness: when to ask, what the answers mean, and how to ask.

`ProbeCounter` is pure; `run_probe` asks forever; `Prober` makes the three kinds of question.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp

from e2e.cluster.nodes.errors import PodRefusedError
from e2e.cluster.nodes.sandbox import run_inside

Object = dict[str, Any]


@dataclass
class ProbeCounter:
    """Answers in a row against thresholds."""

    success_threshold: int = 1
    failure_threshold: int = 3
    _streak: int = 0
    _last: bool | None = None

    def observe(self, is_ok: bool) -> bool | None:  # noqa: FBT001
        """True or False once that many answers in a row said so, else None."""
        self._streak = self._streak + 1 if is_ok == self._last else 1
        self._last = is_ok
        threshold = self.success_threshold if is_ok else self.failure_threshold
        return is_ok if self._streak >= threshold else None


def resolve_port(port: int | str, container: Object) -> int:
    """A probe's port by number or name."""
    if isinstance(port, int) or port.isdigit():
        return int(port)
    for each in container.get("ports", ()):
        if each.get("name") == port:
            return int(each["containerPort"])
    raise PodRefusedError(
        "CreateContainerConfigError", f"a probe names port {port!r}, which the container has not"
    )


def check_probe(name: str, probe: Object) -> None:
    """Refuse what this node cannot ask."""
    if not any(kind in probe for kind in ("httpGet", "tcpSocket", "exec")):
        raise PodRefusedError(
            "CreateContainerConfigError", f"{name}: this node has httpGet, tcpSocket and exec probes"
        )


async def run_probe(
    probe: Object,
    ask: Callable[[Object], Awaitable[str | None]],
    on_answer: Callable[[bool | None, str], None],
) -> None:
    """Ask with the probe's delay and period; `on_answer(verdict, failure)` for each answer; never returns."""
    counter = ProbeCounter(probe.get("successThreshold", 1), probe.get("failureThreshold", 3))
    await asyncio.sleep(probe.get("initialDelaySeconds", 0))
    while True:
        failure = await ask(probe)
        on_answer(counter.observe(failure is None), failure or "")
        await asyncio.sleep(probe.get("periodSeconds", 10))


class Prober:
    """Asks one container."""

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

    async def ask(self, probe: Object) -> str | None:
        """None when all is well, else what was answered."""
        timeout = float(probe.get("timeoutSeconds", 1))
        try:
            async with asyncio.timeout(timeout):
                return await self.perform(probe, timeout)
        except TimeoutError:
            return f"no answer within {timeout:g} s"
        except (OSError, aiohttp.ClientError) as error:
            return str(error) or repr(error)

    async def perform(self, action: Object, timeout: float) -> str | None:
        """An httpGet, tcpSocket or exec, of a probe or of a lifecycle hook."""
        if "exec" in action:
            result = await run_inside(self._pid, action["exec"]["command"], self._env, timeout)
            return None if result.exit_code == 0 else result.output or f"exit status {result.exit_code}"
        if "tcpSocket" in action:
            target = action["tcpSocket"]
            _, writer = await asyncio.open_connection(target.get("host") or self._address, self._port(target))
            writer.close()
            return None
        return await self._get(action["httpGet"])

    def _port(self, target: Object) -> int:
        return resolve_port(target["port"], self._container)

    async def _get(self, target: Object) -> str | None:
        scheme = target.get("scheme", "HTTP").lower()
        path = "/" + target.get("path", "/").lstrip("/")
        url = f"{scheme}://{target.get('host') or self._address}:{self._port(target)}{path}"
        headers = {each["name"]: each["value"] for each in target.get("httpHeaders", ())}
        headers = {"User-Agent": "kube-probe/1.34", "Connection": "close", **headers}
        async with self._session.get(url, headers=headers, ssl=False, allow_redirects=False) as response:
            if 200 <= response.status < 400:
                return None
            body = (await response.content.read(512)).decode(errors="replace").strip()
            return f"HTTP probe failed with statuscode: {response.status}{': ' + body if body else ''}"
