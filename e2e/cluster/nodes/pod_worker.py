"""One pod's life as verbs: admit, prepare, initialise, run, end."""

import asyncio
import base64
import logging
import shutil
from datetime import UTC, datetime
from typing import Any

import aiohttp

from e2e.cluster.nodes.admission import check_pod
from e2e.cluster.nodes.container_worker import ContainerWorker
from e2e.cluster.nodes.environment import Facts
from e2e.cluster.nodes.errors import PodRefusedError
from e2e.cluster.nodes.kube import STRATEGIC_PATCH
from e2e.cluster.nodes.node import Node
from e2e.cluster.nodes.status import ContainerRecord, PodFacts, Waiting, observed_restarts, render_status
from e2e.cluster.nodes.volumes import PodVolumes
from millrace_kubernetes.errors import ApiError

Object = dict[str, Any]
log = logging.getLogger(__name__)
_RETRY_SECONDS = 1.0
_DEFAULT_GRACE_SECONDS = 30


class PodWorker:
    """Runs one pod on one node, from its binding to its deletion."""

    def __init__(self, node: Node, pod: Object) -> None:
        self.pod = pod
        self.uid: str = pod["metadata"]["uid"]
        self._node = node
        self._address = node.addresses.allocate(self.uid)
        self._started = datetime.now(UTC)
        self._is_initialized = not pod["spec"].get("initContainers")
        self._is_ending = False
        self._failure: tuple[str, str] | None = None
        self._volumes = PodVolumes(self._facts(), node.pod_folder(self.uid) / "volumes", node.api_objects)
        self._init = [self._worker(each, restarts=0) for each in pod["spec"].get("initContainers", ())]
        self._main = [
            self._worker(each, restarts=observed_restarts(pod, each["name"]))
            for each in pod["spec"]["containers"]
        ]
        self._changed = asyncio.Event()
        self._written: Object | None = None
        self._life = asyncio.create_task(self._live())
        self._writer = asyncio.create_task(self._write_changes())
        self._ending: asyncio.Task[None] | None = None
        self._grace_deadline = float("inf")

    def _worker(self, container: Object, restarts: int) -> ContainerWorker:
        record = ContainerRecord(container["name"], container["image"], restart_count=restarts)
        return ContainerWorker(
            self._node, container, record, self._volumes, self._fetch_facts, self.note_change
        )

    def update(self, pod: Object) -> None:
        """The API server's newer version of the pod."""
        self.pod = pod
        if "deletionTimestamp" in pod["metadata"]:
            self.end()
        self._changed.set()

    def note_change(self) -> None:
        """Something in the status is different."""
        self._changed.set()

    def refresh_hosts(self) -> None:
        """The Services changed."""
        if self._address:
            self._node.write_hosts(self.pod, self._address)

    def find(self, container: str) -> ContainerWorker | None:
        """A container's worker by name."""
        return next((each for each in self._init + self._main if each.record.name == container), None)

    def end(self) -> None:
        """The pod is being deleted: stop it within its grace and let the API server forget it. Idempotent.

        A shorter grace than before (kubectl delete --grace-period) takes effect at once.
        """
        grace = self.pod["metadata"].get("deletionGracePeriodSeconds", _DEFAULT_GRACE_SECONDS)
        deadline = asyncio.get_running_loop().time() + grace
        if self._ending is None:
            self._ending = asyncio.create_task(self._end(grace))
        elif deadline < self._grace_deadline - 1 and grace <= 1:
            for each in self._init + self._main:
                if each.running is not None:
                    asyncio.ensure_future(each.running.kill())  # noqa: RUF006  its end is awaited by _end
        self._grace_deadline = min(self._grace_deadline, deadline)

    async def kill(self) -> None:
        """End all of its processes now, silently: the node ends or the pod is gone."""
        tasks = [task for task in (self._life, self._writer, self._ending) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(
            *(each.running.kill() for each in self._init + self._main if each.running is not None)
        )

    def remove(self) -> None:
        """Forget everything about the pod on this machine."""
        self._node.addresses.release(self.uid)
        self._node.api_objects.forget(self.uid)
        shutil.rmtree(self._node.pod_folder(self.uid), ignore_errors=True)

    async def _live(self) -> None:
        try:
            check_pod(self.pod)
            await self._prepare()
            if await self._initialize():
                await self._run()
        except PodRefusedError as error:
            self._failure = (error.reason, str(error))
            self._node.emit(self.pod, error.reason, str(error))
        except Exception as error:
            log.exception("pod %s", self.pod["metadata"]["name"])
            self._failure = ("NodeError", repr(error))
        self.note_change()

    async def _prepare(self) -> None:
        """Volumes; what they need may come later."""
        while True:
            try:
                await self._volumes.prepare()
            except (PodRefusedError, ApiError, OSError, aiohttp.ClientError) as error:
                self._node.emit(self.pod, "FailedMount", str(error))
                await asyncio.sleep(_RETRY_SECONDS)
            else:
                return

    async def _initialize(self) -> bool:
        for worker in self._main:
            worker.record.state = Waiting("PodInitializing" if self._init else "ContainerCreating")
        self.note_change()
        for worker in self._init:
            if await worker.run(self._policy, is_init=True):
                self._failure = ("InitContainerFailed", f"init container {worker.record.name} failed")
                return False
        self._is_initialized = True
        self.note_change()
        return True

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as group:
            refresh = group.create_task(self._refresh_volumes())
            runs = [group.create_task(each.run(self._policy, is_init=False)) for each in self._main]
            await asyncio.wait(runs)
            refresh.cancel()

    async def _refresh_volumes(self) -> None:
        while self._volumes.can_change:
            await asyncio.sleep(self._node.settings.timing.volume_refresh_period)
            try:
                await self._volumes.refresh()
            except (PodRefusedError, ApiError, OSError, aiohttp.ClientError) as error:
                log.info("volumes of %s: %s", self.pod["metadata"]["name"], error)

    async def _end(self, grace_seconds: float) -> None:
        self._is_ending = True
        # The workers' loops end before the containers do, so that none starts again.
        self._life.cancel()
        await asyncio.gather(self._life, return_exceptions=True)
        await asyncio.gather(*(each.stop(self.pod, grace_seconds) for each in self._init + self._main))
        for each in self._main:
            each.record.is_ready = False
        self._writer.cancel()
        await asyncio.gather(self._writer, return_exceptions=True)
        await self._delete()

    async def _delete(self) -> None:
        """Write how it ended and let the object go; again until the API server took it."""
        body = {"gracePeriodSeconds": 0, "preconditions": {"uid": self.uid}}
        while True:
            try:
                await self._write_end()
                await self._node.client.delete(self._path, body)
            except ApiError as error:
                if error.status in (404, 409):
                    return
                log.warning("deleting %s: %s", self._path, error)
            except (aiohttp.ClientError, TimeoutError) as error:
                log.warning("deleting %s: %r", self._path, error)
            else:
                return
            await asyncio.sleep(_RETRY_SECONDS)

    async def _write_end(self) -> None:
        """How it ended, if it began here: a pod that was over before this node process stays as it was."""
        if any(each.record.container_id for each in self._init + self._main):
            try:
                await self._write_status()
            except ApiError as error:
                log.info("the last status of %s: %s", self._path, error)

    @property
    def _policy(self) -> str:
        return str(self.pod["spec"].get("restartPolicy", "Always"))

    @property
    def _path(self) -> str:
        metadata = self.pod["metadata"]
        return f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"

    async def _write_changes(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self._write_status()
            except (ApiError, aiohttp.ClientError, TimeoutError) as error:
                if isinstance(error, ApiError) and error.status in (404, 409):
                    continue
                log.warning("status of %s: %s", self._path, error)
                self._changed.set()
                await asyncio.sleep(_RETRY_SECONDS)

    async def _write_status(self) -> None:
        facts = PodFacts(
            self._address,
            self._node.host_ip,
            self._started,
            self._is_initialized,
            self._is_ending,
            self._failure,
        )
        init, main = ([each.record for each in group] for group in (self._init, self._main))
        status = render_status(self.pod, init, main, facts, datetime.now(UTC))
        if status == self._written:
            return
        body = {"metadata": {"uid": self.uid}, "status": _as_patch(status)}
        self.pod = await self._node.client.patch(f"{self._path}/status", body, STRATEGIC_PATCH)
        self._written = status

    def _facts(self) -> Facts:
        return Facts(self.pod, self._address, self._node.host_ip)

    async def _fetch_facts(self) -> Facts:
        """With the ConfigMaps and Secrets that its environment names."""
        names: dict[str, set[str]] = {"configMap": set(), "secret": set()}
        for container in [*self.pod["spec"].get("initContainers", ()), *self.pod["spec"]["containers"]]:
            for source in [
                *container.get("envFrom", ()),
                *(e.get("valueFrom", {}) for e in container.get("env", ())),
            ]:
                for kind, reference in source.items():
                    if kind in ("configMapRef", "configMapKeyRef", "secretRef", "secretKeyRef"):
                        names["secret" if kind.startswith("secret") else "configMap"].add(reference["name"])
        return Facts(
            self.pod,
            self._address,
            self._node.host_ip,
            await self._data("configMap", names),
            await self._data("secret", names),
        )

    async def _data(self, kind: str, names: dict[str, set[str]]) -> dict[str, dict[str, str]]:
        found: dict[str, dict[str, str]] = {}
        fetch = self._node.api_objects.secret if kind == "secret" else self._node.api_objects.config_map
        for name in names[kind]:
            if (item := await fetch(self.pod["metadata"]["namespace"], name)) is not None:
                data = item.get("data") or {}
                decode = kind == "secret"
                found[name] = {k: base64.b64decode(v).decode() if decode else v for k, v in data.items()}
        return found


def _as_patch(status: Object) -> Object:
    """A strategic merge patch merges podIPs by address; a pod that comes back with another has one only."""
    return status | {"podIPs": [*status.get("podIPs", ()), {"$patch": "replace"}]}
