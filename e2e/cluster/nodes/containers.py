"""One run of a container: its process, log and quota, and how it is stopped."""

import asyncio
import contextlib
import signal
import time
from collections.abc import Awaitable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.cluster.nodes.environment import Facts, build_environment, expand
from e2e.cluster.nodes.errors import PodRefusedError
from e2e.cluster.nodes.images import Image
from e2e.cluster.nodes.logs import LogFile
from e2e.cluster.nodes.quantities import parse_quantity
from e2e.cluster.nodes.quota import enforce_quota
from e2e.cluster.nodes.sandbox import Mount, Sandbox, SandboxSpec, start_sandbox

Object = dict[str, Any]
_LEAST_GRACE_SECONDS = 2.0


@dataclass(frozen=True)
class Place:
    """Where a container runs on the host, and what every container there is given."""

    staging: Path
    bin_folder: str
    hosts: Path
    always: tuple[Path, ...]
    """Host folders that must be visible (the Python environment), also where /tmp or /run hides them."""
    never: tuple[Path, ...]
    """Host folders that no container may see: the cluster's keys lie there."""


def render_sandbox(  # noqa: PLR0917  all different types
    container: Object,
    image: Image,
    facts: Facts,
    services: dict[str, str],
    mounts: tuple[Mount, ...],
    place: Place,
) -> SandboxSpec:
    """Return a container's sandbox. Raises PodRefusedError where pod and image don't fit together. Pure."""
    env = build_environment(container, facts, image.env or {}, services, place.bin_folder)
    uid, gid = _identity(facts.pod, container, image)
    copies = tuple(Mount(target, str(source), readonly=True) for source, target in image.copies)
    visible = tuple(Mount(str(path), str(path), readonly=True, optional=True) for path in place.always)
    covers = tuple(Mount(str(path), kind="cover") for path in place.never)
    arguments = container.get("args") or image.arguments
    context = container.get("securityContext", {})
    return SandboxSpec(
        argv=(*_entrypoint(container, image, env), *(expand(each, env) for each in arguments)),
        env=env,
        staging=place.staging,
        # Late, as a volume on /tmp may hide them once more; covers last, as those may show what is covered.
        mounts=(Mount("/etc/hosts", str(place.hosts)), *copies, *mounts, *visible, *covers),
        cwd=container.get("workingDir") or image.workdir,
        hostname=facts.pod["spec"].get("hostname") or facts.pod["metadata"]["name"],
        uid=uid,
        gid=gid,
        readonly_root=bool(context.get("readOnlyRootFilesystem")),
    )


def _entrypoint(container: Object, image: Image, env: dict[str, str]) -> tuple[str, ...]:
    command = tuple(expand(each, env) for each in container.get("command", ()))
    if command and command != image.entrypoint:
        raise PodRefusedError(
            "CreateContainerError",
            f"command {list(command)} is not the entrypoint {list(image.entrypoint)} of image {image.name}; "
            "leave command out, or give it in the Containerfile",
        )
    return image.entrypoint


def _identity(pod: Object, container: Object, image: Image) -> tuple[int, int]:
    context = {**pod["spec"].get("securityContext", {}), **container.get("securityContext", {})}
    named = image.user if image.user.isdigit() else ("0" if image.user in ("", "root") else "65532")
    uid = int(context.get("runAsUser", named))
    if uid == 0 and context.get("runAsNonRoot"):
        raise PodRefusedError(
            "CreateContainerConfigError",
            f"runAsNonRoot is set, and image {image.name} runs as root; set runAsUser",
        )
    return uid, int(context.get("runAsGroup", uid))


class RunningContainer:
    """A started container."""

    def __init__(self, sandbox: Sandbox, log_file: LogFile, cores: float | None) -> None:
        self.pid = sandbox.pid
        self.log = log_file
        self._sandbox = sandbox
        self._copying = asyncio.create_task(log_file.copy_from(sandbox.output))
        self._quota = asyncio.create_task(enforce_quota(sandbox.pid, cores)) if cores else None

    async def wait(self) -> int:
        """Return the exit status once the log is complete. Several may wait."""
        code = await self._sandbox.wait()
        if self._quota is not None:
            self._quota.cancel()
            await asyncio.gather(self._quota, return_exceptions=True)
        await asyncio.wait({self._copying})
        return code

    async def stop(self, grace_seconds: float, pre_stop: Awaitable[object] | None = None) -> int:
        """Run preStop, send SIGTERM, and SIGKILL when the grace is over. Returns the exit status."""
        deadline = time.monotonic() + grace_seconds
        if pre_stop is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(pre_stop, grace_seconds)
        if grace_seconds > 0:
            self._sandbox.send(signal.SIGTERM)
            left = deadline - time.monotonic()
            with contextlib.suppress(TimeoutError):
                return await asyncio.wait_for(
                    self.wait(), max(left, min(_LEAST_GRACE_SECONDS, grace_seconds))
                )
        return await self.kill()

    async def kill(self) -> int:
        """Send SIGKILL to all of its processes. Returns the exit status."""
        self._sandbox.send(signal.SIGKILL)
        return await self.wait()


async def start_container(spec: SandboxSpec, log_path: Path, cpu_limit: str | None) -> RunningContainer:
    """Start a container. Raises SandboxError where that can't be done."""
    spec.staging.mkdir(parents=True, exist_ok=True)
    log_path.parent.mkdir(parents=True, exist_ok=True)
    cores = parse_quantity(cpu_limit) if cpu_limit else None
    log_file = LogFile(log_path)  # before the sandbox: nothing may fail while nobody holds its processes
    try:
        return RunningContainer(await start_sandbox(spec), log_file, cores)
    except BaseException:
        log_file.discard()
        raise
