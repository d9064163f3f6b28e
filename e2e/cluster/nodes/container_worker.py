"""Starts one container, waits for its end, starts it again after its back-off, and stops it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp

from e2e.cluster.nodes.backoff import Backoff, should_restart
from e2e.cluster.nodes.cancellation import end_tasks
from e2e.cluster.nodes.container_record import ContainerRecord, Terminated, Waiting, begin_record
from e2e.cluster.nodes.containers import Place, RunningContainer, render_sandbox, start_container
from e2e.cluster.nodes.environment import Facts
from e2e.cluster.nodes.errors import PodRefusedError, SandboxError
from e2e.cluster.nodes.node import Node
from e2e.cluster.nodes.prober import Prober
from e2e.cluster.nodes.probes import Consequence, ContainerProbes, ProbeAnswer
from e2e.cluster.nodes.termination import TerminationMessage
from e2e.cluster.nodes.volumes import PodVolumes
from millrace_kubernetes.errors import ApiError

Object = dict[str, Any]
_KEPT_LOGS = 2
_DEFAULT_GRACE_SECONDS = 30


@dataclass(frozen=True)
class PodParts:
    """What the containers of a pod share."""

    node: Node
    volumes: PodVolumes
    fetch_facts: Callable[[], Awaitable[Facts]]
    note_change: Callable[[], None]
    """To be called when a record has changed."""


class ContainerWorker:
    """Keeps one container of a pod running, and its record true."""

    def __init__(self, parts: PodParts, pod: Object, container: Object, restarts: int) -> None:
        self.record: ContainerRecord = begin_record(container, restarts)
        self.running: RunningContainer | None = None
        self._node = parts.node
        self._parts = parts
        self._pod = pod
        self._container = container
        self._backoff = Backoff(parts.node.settings.timing)
        self._prober: Prober | None = None
        self._stopping: asyncio.Task[int] | None = None
        """Stops the current run for a probe."""

    async def run(self, policy: str, *, is_init: bool) -> int:
        """Run it until it may not start again; return the last exit status."""
        while True:
            running = await self._start_when_possible()
            async with contextlib.nullcontext() if is_init else self._probing():
                code = await running.wait()
            self._note_end(code)
            if not should_restart(policy, code, is_init=is_init):
                return code
            await self._back_off(code)

    async def stop(self, grace_seconds: float) -> None:
        """Stop it, if it runs, and note its end."""
        if (running := self.running) is None:
            return
        self._emit("Killing", f"Stopping container {self.record.name}")
        if self._stopping is None:
            code = await self._stop_run(running, grace_seconds)
        else:  # for a probe: the hook that runs already is the one to wait for
            code = await running.stop(grace_seconds, asyncio.wait({self._stopping}))
        self._note_end(code)

    def note_waiting(self, why: Waiting) -> None:
        """Show why it does not run."""
        self._set(self.record.wait(why))

    # Starting.

    async def _start_when_possible(self) -> RunningContainer:
        """Start it; what forbids that is shown and tried again."""
        backoff = Backoff(self._node.settings.timing)
        while True:
            try:
                return await self._start()
            except (PodRefusedError, SandboxError, ApiError, aiohttp.ClientError, OSError) as error:
                await self._show_refusal(explain_refusal(error), backoff.after_refusal())

    async def _show_refusal(self, why: Waiting, wait_seconds: float) -> None:
        self.note_waiting(why)
        event = "FailedCreatePodSandBox" if why.reason == "RunContainerError" else "Failed"
        self._emit(event, f"Error: {why.reason}: {why.message}")
        if why.reason == "ErrImagePull":
            await asyncio.sleep(min(1.0, wait_seconds))
            self.note_waiting(Waiting("ImagePullBackOff", why.message))
        await asyncio.sleep(wait_seconds)

    async def _start(self) -> RunningContainer:
        facts = await self._parts.fetch_facts()
        self._pod = facts.pod
        image = self._node.image(self._container["image"])
        self._emit("Pulled", f'Container image "{self.record.image}" already present on machine')
        mounts = (*self._parts.volumes.mounts(self._container), self._last_words().prepare())
        spec = render_sandbox(self._container, image, facts, self._variables(), mounts, self._place(facts))
        cpu = self._container.get("resources", {}).get("limits", {}).get("cpu")
        self.running = await start_container(spec, self._new_log(), cpu)
        self._emit("Created", f"Created container: {self.record.name}")
        self._prober = Prober(self._node.session, self._container, facts.pod_ip, self.running.pid, spec.env)
        self._stopping = None
        self._set(self.record.start(self._pod["metadata"]["uid"], datetime.now(UTC)))
        self._emit("Started", f"Started container {self.record.name}")
        return self.running

    def _variables(self) -> dict[str, str]:
        links = self._pod["spec"].get("enableServiceLinks", True)
        return self._node.variables(self._pod["metadata"]["namespace"], with_services=links)

    def _place(self, facts: Facts) -> Place:
        folder = self._node.pod_folder(facts.pod["metadata"]["uid"])
        return Place(
            staging=folder / "roots" / self.record.name,
            bin_folder=self._node.bin_folder,
            hosts=self._node.write_hosts(facts.pod, facts.pod_ip),
            always=self._node.always_visible,
            never=self._node.settings.hidden,
        )

    def _last_words(self) -> TerminationMessage:
        folder = self._node.pod_folder(self._pod["metadata"]["uid"])
        return TerminationMessage(self._container, folder / "termination" / self.record.name)

    def _new_log(self) -> Path:
        """Return the next run's log file; older ones than the last two go."""
        folder = self._node.log_folder(self._pod["metadata"]["uid"], self.record.name)
        number = self.record.next_run
        for old in range(number - _KEPT_LOGS + 1):
            (folder / f"{old}.log").unlink(missing_ok=True)
        return folder / f"{number}.log"

    # Running.

    @contextlib.asynccontextmanager
    async def _probing(self) -> AsyncIterator[None]:
        assert self._prober is not None
        probes = asyncio.create_task(ContainerProbes(self._container, self._prober, self._react).run())
        try:
            yield
        finally:
            await end_tasks([probes])  # a later stop of the container gets no probe's answer

    def _react(self, answer: ProbeAnswer) -> None:
        if answer.failure is not None:
            name = answer.kind.name.title()
            self._emit("Unhealthy", f"{name} probe failed: {answer.failure}")
        if self.running is None:
            return
        match answer.consequence:
            case Consequence.NOTE_STARTED:
                self._set(self.record.pass_startup())
            case Consequence.NOTE_READY:
                self._set(self.record.answer_readiness(is_ready=True))
            case Consequence.NOTE_UNREADY:
                self._set(self.record.answer_readiness(is_ready=False))
            case Consequence.RESTART:
                self._stop_for_restart(self.running, answer.probe)

    def _stop_for_restart(self, running: RunningContainer, probe: Object) -> None:
        """Stop the current run; `run` starts the next. Asked once a run: its probes end with that."""
        self._emit("Killing", f"Container {self.record.name} failed its probe, will be restarted")
        pods = self._pod["spec"].get("terminationGracePeriodSeconds", _DEFAULT_GRACE_SECONDS)
        grace_seconds = float(probe.get("terminationGracePeriodSeconds", pods))
        self._stopping = asyncio.create_task(self._stop_run(running, grace_seconds))

    # Ending.

    def _note_end(self, code: int) -> None:
        """Record the end of the current run, unless it is recorded already."""
        if (running := self.running) is None:
            return
        self.running = None
        policy = self._container.get("terminationMessagePolicy", "File")
        message = self._last_words().read()
        if code and not message and policy == "FallbackToLogsOnError":
            message = running.log.last_line()
        self._set(self.record.end(code, message, datetime.now(UTC)))

    async def _back_off(self, code: int) -> None:
        name, ended = self.record.name, self.record.state
        assert isinstance(ended, Terminated)
        wait_seconds = self._backoff.after_run(ended.ran_seconds)
        if wait_seconds > 0:
            what = f"restarting failed container={name} (exit status {code})"
            self.note_waiting(Waiting("CrashLoopBackOff", f"back-off {wait_seconds:g}s {what}"))
            self._emit("BackOff", f"Back-off restarting failed container {name}")
            await asyncio.sleep(wait_seconds)

    async def _stop_run(self, running: RunningContainer, grace_seconds: float) -> int:
        """Stop a run, its preStop hook first as long as there is a grace; return its exit status."""
        hook = self._container.get("lifecycle", {}).get("preStop")
        if not hook or grace_seconds <= 0:
            return await running.stop(grace_seconds)
        return await running.stop(grace_seconds, self._pre_stop(hook, grace_seconds))

    async def _pre_stop(self, hook: Object, grace_seconds: float) -> None:
        assert self._prober is not None
        if (failure := await self._prober.ask(hook, grace_seconds)) is not None:
            self._emit("FailedPreStopHook", f"PreStopHook failed: {failure}")

    def _set(self, record: ContainerRecord) -> None:
        if record != self.record:
            self.record = record
            self._parts.note_change()

    def _emit(self, reason: str, message: str) -> None:
        self._node.emit(self._pod, reason, message, self.record.name)


def explain_refusal(error: Exception) -> Waiting:
    """Return what status shows of a container that can't be started."""
    if isinstance(error, PodRefusedError):
        return Waiting(error.reason, str(error))
    if isinstance(error, SandboxError):
        return Waiting("RunContainerError", str(error))
    return Waiting("CreateContainerConfigError", str(error) or repr(error))
