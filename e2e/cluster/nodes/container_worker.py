"""One container's life: start, probe, wait, start again after its back-off."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp

from e2e.cluster.nodes.backoff import Backoff, should_restart
from e2e.cluster.nodes.containers import Place, RunningContainer, render_sandbox, start_container
from e2e.cluster.nodes.environment import Facts
from e2e.cluster.nodes.errors import PodRefusedError, SandboxError
from e2e.cluster.nodes.node import Node
from e2e.cluster.nodes.probes import Prober, run_probe
from e2e.cluster.nodes.status import ContainerRecord, Running, Terminated, Waiting, end_reason
from e2e.cluster.nodes.volumes import PodVolumes
from millrace_kubernetes.errors import ApiError

Object = dict[str, Any]
log = logging.getLogger(__name__)
_KEPT_LOGS = 2


class ContainerWorker:
    """Keeps one container of a pod running, and its record true."""

    def __init__(  # noqa: PLR0917  all different types
        self,
        node: Node,
        container: Object,
        record: ContainerRecord,
        volumes: PodVolumes,
        fetch_facts: Callable[[], Awaitable[Facts]],
        on_change: Callable[[], None],
    ) -> None:
        self.record = record
        self.running: RunningContainer | None = None
        self._run_number = record.restart_count
        self._node = node
        self._container = container
        self._volumes = volumes
        self._fetch_facts = fetch_facts
        self._on_change = on_change
        self._backoff = Backoff(node.settings.timing)
        self._prober: Prober | None = None
        self._pod: Object = {}

    async def run(self, policy: str, *, is_init: bool) -> int:
        """Until it has ended and may not start again; the last exit status."""
        while True:
            started = await self._start_when_possible()
            probes = asyncio.create_task(self._probe()) if not is_init else None
            try:
                code = await started.wait()
            finally:
                if probes is not None:
                    probes.cancel()
            ran = self.note_end(code)
            if not should_restart(policy, code, is_init=is_init):
                return code
            await self._back_off(self._backoff.after_run(ran), code)

    async def stop(self, pod: Object, grace_seconds: float) -> None:
        """Stop it, if it runs, and note its end."""
        if (running := self.running) is None:
            return
        name = self.record.name
        self._node.emit(pod, "Killing", f"Stopping container {name}", name)
        hook = self._container.get("lifecycle", {}).get("preStop")
        code = await running.stop(grace_seconds, self._pre_stop(hook, grace_seconds) if hook else None)
        self.note_end(code)

    def note_end(self, code: int) -> float:
        """Record that the current run ended with this status; how many seconds it ran."""
        running, state = self.running, self.record.state
        if running is None or not isinstance(state, Running):
            return 0.0
        self.running = None
        now = datetime.now(UTC)
        ended = Terminated(
            code, end_reason(code), self._message(running, code), state.since, now, self.record.container_id
        )
        self.record.state = ended
        self.record.is_ready = self.record.is_started = False
        self._on_change()
        return (now - state.since).total_seconds()

    def _message(self, running: RunningContainer, code: int) -> str:
        policy = self._container.get("terminationMessagePolicy", "File")
        return running.log.last_line() if code and policy == "FallbackToLogsOnError" else ""

    async def _back_off(self, wait_seconds: float, code: int) -> None:
        if wait_seconds > 0:
            what = f"restarting failed container={self.record.name} (exit status {code})"
            message = f"back-off {wait_seconds:g}s {what}"
            self._wait_as(Waiting("CrashLoopBackOff", message))
            self._node.emit(
                self._pod,
                "BackOff",
                f"Back-off restarting failed container {self.record.name}",
                self.record.name,
            )
            await asyncio.sleep(wait_seconds)
        self._run_number += 1

    def _wait_as(self, state: Waiting) -> None:
        if isinstance(self.record.state, Terminated):
            self.record.last = self.record.state
        self.record.state = state
        self._on_change()

    async def _start_when_possible(self) -> RunningContainer:
        """Start it; what forbids that is shown and tried again."""
        backoff = Backoff(self._node.settings.timing)
        while True:
            try:
                return await self._start()
            except PodRefusedError as error:
                refusal = error.reason, str(error)
            except SandboxError as error:
                refusal = "RunContainerError", str(error)
            except (ApiError, aiohttp.ClientError, OSError) as error:
                refusal = "CreateContainerConfigError", str(error) or repr(error)
            self._wait_as(Waiting(*refusal))
            reason = "Failed" if refusal[0] != "RunContainerError" else "FailedCreatePodSandBox"
            self._node.emit(self._pod, reason, f"Error: {refusal[0]}: {refusal[1]}", self.record.name)
            backoff.after_failure()
            wait = backoff.after_failure()
            if refusal[0] == "ErrImagePull":
                await asyncio.sleep(min(1.0, wait))
                self._wait_as(Waiting("ImagePullBackOff", refusal[1]))
            await asyncio.sleep(wait)

    async def _start(self) -> RunningContainer:
        facts = await self._fetch_facts()
        self._pod, name = facts.pod, self.record.name
        image = self._node.image(self._container["image"])
        self._node.emit(
            self._pod, "Pulled", f'Container image "{self.record.image}" already present on machine', name
        )
        spec = render_sandbox(
            self._container,
            image,
            facts,
            self._variables(),
            self._volumes.mounts(self._container),
            self._place(facts),
        )
        cpu = self._container.get("resources", {}).get("limits", {}).get("cpu")
        running = await start_container(spec, self._new_log(), cpu)
        self._node.emit(self._pod, "Created", f"Created container: {name}", name)
        self._note_start(running)
        self._prober = Prober(self._node.session, self._container, facts.pod_ip, running.pid, spec.env)
        self._node.emit(self._pod, "Started", f"Started container {name}", name)
        return running

    def _note_start(self, running: RunningContainer) -> None:
        record = self.record
        if isinstance(record.state, Terminated):
            record.last = record.state
        self.running = running
        record.restart_count = self._run_number
        record.state = Running(datetime.now(UTC))
        record.container_id = f"process://{self._pod['metadata']['uid']}-{record.name}-{record.restart_count}"
        record.is_started = "startupProbe" not in self._container
        record.is_ready = record.is_started and "readinessProbe" not in self._container
        self._on_change()

    def _variables(self) -> dict[str, str]:
        links = self._pod["spec"].get("enableServiceLinks", True)
        return self._node.variables(self._pod["metadata"]["namespace"], with_services=links)

    def _place(self, facts: Facts) -> Place:
        folder = self._node.pod_folder(facts.pod["metadata"]["uid"])
        hosts = self._node.write_hosts(facts.pod, facts.pod_ip)
        return Place(
            staging=folder / "roots" / self.record.name,
            bin_folder=self._node.bin_folder,
            hosts=hosts,
            always=self._node.always_visible,
            never=self._node.settings.hidden,
        )

    def _new_log(self) -> Path:
        folder = self._node.log_folder(self._pod["metadata"]["uid"], self.record.name)
        for number in range(self._run_number - _KEPT_LOGS + 1):
            (folder / f"{number}.log").unlink(missing_ok=True)
        return folder / f"{self._run_number}.log"

    async def _pre_stop(self, hook: Object, grace_seconds: float) -> None:
        assert self._prober is not None
        if "sleep" in hook:
            await asyncio.sleep(hook["sleep"]["seconds"])
            return
        try:
            failure = await self._prober.perform(hook, grace_seconds)
        except OSError as error:
            failure = str(error)
        if failure is not None:
            self._node.emit(
                self._pod, "FailedPreStopHook", f"PreStopHook failed: {failure}", self.record.name
            )

    async def _probe(self) -> None:
        """Startup first, then readiness and liveness side by side, until cancelled."""
        container, record = self._container, self.record
        if (startup := container.get("startupProbe")) is not None:
            await self._wait_for_startup(startup)
            record.is_started = True
            record.is_ready = "readinessProbe" not in container
            self._on_change()
        async with asyncio.TaskGroup() as group:
            for kind, react in (("readiness", self._on_readiness), ("liveness", self._on_liveness)):
                if (probe := container.get(f"{kind}Probe")) is not None:
                    group.create_task(self._run_probe(kind, probe, react))

    async def _run_probe(self, kind: str, probe: Object, react: Callable[[bool, Object], None]) -> None:
        assert self._prober is not None

        def on_answer(verdict: bool | None, failure: str) -> None:  # noqa: FBT001
            if failure:
                self._node.emit(
                    self._pod, "Unhealthy", f"{kind.title()} probe failed: {failure}", self.record.name
                )
            if verdict is not None:
                react(verdict, probe)

        await run_probe(probe, self._prober.ask, on_answer)

    async def _wait_for_startup(self, probe: Object) -> None:
        passed = asyncio.Event()

        def react(is_ok: bool, probe: Object) -> None:  # noqa: FBT001
            if is_ok:
                passed.set()
            else:
                self._on_liveness(is_ok, probe)

        task = asyncio.create_task(self._run_probe("startup", probe, react))
        try:
            await passed.wait()
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    def _on_readiness(self, is_ok: bool, _: Object) -> None:  # noqa: FBT001
        if self.record.is_ready != is_ok and self.running is not None:
            self.record.is_ready = is_ok
            self._on_change()

    def _on_liveness(self, is_ok: bool, probe: Object) -> None:  # noqa: FBT001
        if is_ok or self.running is None or self._stopping is not None:
            return
        name = self.record.name
        self._node.emit(self._pod, "Killing", f"Container {name} failed its probe, will be restarted", name)
        grace = probe.get(
            "terminationGracePeriodSeconds", self._pod["spec"].get("terminationGracePeriodSeconds", 30)
        )
        self._stopping = asyncio.create_task(self.running.stop(float(grace)))
        self._stopping.add_done_callback(lambda _: setattr(self, "_stopping", None))

    _stopping: asyncio.Task[int] | None = None
