"""One pod's life as verbs: admit, prepare, initialise, run, end."""

import asyncio
import logging
import shutil
from datetime import UTC, datetime
from typing import Any

import aiohttp

from e2e.cluster.nodes.admission import check_pod
from e2e.cluster.nodes.cancellation import end_tasks
from e2e.cluster.nodes.container_record import Waiting
from e2e.cluster.nodes.container_status import observed_restarts
from e2e.cluster.nodes.container_worker import ContainerWorker, PodParts
from e2e.cluster.nodes.environment import Facts
from e2e.cluster.nodes.environment_sources import fetch_data
from e2e.cluster.nodes.errors import PodRefusedError
from e2e.cluster.nodes.node import Node
from e2e.cluster.nodes.pod_object import RETRY_SECONDS, PodObject
from e2e.cluster.nodes.status import Failure, PodFacts, render_status
from e2e.cluster.nodes.volumes import PodVolumes
from millrace_kubernetes.errors import ApiError

Object = dict[str, Any]
log = logging.getLogger(__name__)
_DEFAULT_GRACE_SECONDS = 30


class PodWorker:
    """Runs one pod on one node, from its binding to its deletion."""

    def __init__(self, node: Node, pod: Object) -> None:
        self.uid: str = pod["metadata"]["uid"]
        self._object = PodObject(node.client, pod, self._render_status)
        self._node = node
        self._address = node.addresses.allocate(self.uid)
        self._started = datetime.now(UTC)
        self._is_initialized = not pod["spec"].get("initContainers")
        self._failure: Failure | None = None
        self._volumes = PodVolumes(self._facts(), node.pod_folder(self.uid) / "volumes", node.api_objects)
        parts = PodParts(node, self._volumes, self._fetch_facts, self._object.note_change)
        self._init = [
            ContainerWorker(parts, pod, each, restarts=0) for each in pod["spec"].get("initContainers", ())
        ]
        self._main = [
            ContainerWorker(parts, pod, each, restarts=observed_restarts(pod, each["name"]))
            for each in pod["spec"]["containers"]
        ]
        self._life = asyncio.create_task(self._live())
        self._writing = asyncio.create_task(self._object.write_changes())
        self._ending: asyncio.Task[None] | None = None
        self._killing: asyncio.Task[None] | None = None
        self._grace_deadline = float("inf")

    @property
    def pod(self) -> Object:
        """The pod's newest version."""
        return self._object.newest

    def update(self, pod: Object) -> None:
        """Take the API server's newer version of the pod."""
        self._object.newest = pod
        if "deletionTimestamp" in pod["metadata"]:
            self.end()
        self._object.note_change()

    def refresh_hosts(self) -> None:
        """Write /etc/hosts again: the Services changed."""
        if self._address:
            self._node.write_hosts(self.pod, self._address)

    def find(self, container: str) -> ContainerWorker | None:
        """Return a container's worker by name."""
        return next((each for each in self._containers if each.record.name == container), None)

    def end(self) -> None:
        """Begin to stop the deleted pod within its grace, and let the API server forget it. Idempotent.

        A shorter grace than before (kubectl delete --grace-period) takes effect at once.
        """
        grace = self.pod["metadata"].get("deletionGracePeriodSeconds", _DEFAULT_GRACE_SECONDS)
        deadline = asyncio.get_running_loop().time() + grace
        if self._ending is None:
            self._ending = asyncio.create_task(self._end(grace))
        elif deadline < self._grace_deadline - 1 and grace <= 1:
            self._killing = asyncio.create_task(self._kill_containers())
        self._grace_deadline = min(self._grace_deadline, deadline)

    async def kill(self) -> None:
        """End all of its processes now, silently: the node ends or the pod is gone."""
        await end_tasks([task for task in (self._life, self._writing, self._ending) if task is not None])
        await self._kill_containers()

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
            self._failure = Failure(error.reason, str(error))
            self._node.emit(self.pod, error.reason, str(error))
        except Exception as error:
            log.exception("pod %s", self.pod["metadata"]["name"])
            self._failure = Failure("NodeError", repr(error))
        self._object.note_change()

    async def _prepare(self) -> None:
        """Make the volumes; what they need may come later."""
        while True:
            try:
                await self._volumes.prepare()
            except (PodRefusedError, ApiError, OSError, aiohttp.ClientError) as error:
                self._node.emit(self.pod, "FailedMount", str(error))
                await asyncio.sleep(RETRY_SECONDS)
            else:
                return

    async def _initialize(self) -> bool:
        """Run the init containers one after the other; return whether all of them succeeded."""
        for worker in self._main:
            worker.note_waiting(Waiting("PodInitializing" if self._init else "ContainerCreating"))
        self._object.note_change()
        for worker in self._init:
            if await worker.run(self._policy, is_init=True):
                self._failure = Failure("InitContainerFailed", f"init container {worker.record.name} failed")
                return False
        self._is_initialized = True
        self._object.note_change()
        return True

    async def _run(self) -> None:
        runs = [asyncio.create_task(each.run(self._policy, is_init=False)) for each in self._main]
        refresh = asyncio.create_task(self._refresh_volumes())
        try:
            await asyncio.gather(*runs)
        finally:
            await end_tasks([*runs, refresh])

    async def _refresh_volumes(self) -> None:
        while self._volumes.can_change:
            await asyncio.sleep(self._node.settings.timing.volume_refresh_period)
            try:
                await self._volumes.refresh()
            except (PodRefusedError, ApiError, OSError, aiohttp.ClientError) as error:
                log.info("volumes of %s: %s", self.pod["metadata"]["name"], error)

    async def _end(self, grace_seconds: float) -> None:
        # The workers' loops end before the containers do, so that none starts again.
        await end_tasks([self._life])
        await asyncio.gather(*(each.stop(grace_seconds) for each in self._containers))
        await end_tasks([self._writing])
        # A pod that was over before this node process began stays as it was.
        await self._object.delete(with_status=any(each.record.container_id for each in self._containers))

    async def _kill_containers(self) -> None:
        running = [each.running for each in self._containers]
        await asyncio.gather(*(each.kill() for each in running if each is not None))

    @property
    def _containers(self) -> list[ContainerWorker]:
        return [*self._init, *self._main]

    @property
    def _policy(self) -> str:
        return str(self.pod["spec"].get("restartPolicy", "Always"))

    def _render_status(self, pod: Object) -> Object:
        facts = PodFacts(
            pod_ip=self._address,
            host_ip=self._node.host_ip,
            started=self._started,
            is_initialized=self._is_initialized,
            main=[each.record for each in self._main],
            init=[each.record for each in self._init],
            is_ending=self._ending is not None,
            failure=self._failure,
        )
        return render_status(pod, facts, datetime.now(UTC))

    def _facts(self) -> Facts:
        return Facts(self.pod, self._address, self._node.host_ip)

    async def _fetch_facts(self) -> Facts:
        """Return the facts with what the environment of the containers names."""
        source, pod = self._node.api_objects, self.pod
        return Facts(
            pod,
            self._address,
            self._node.host_ip,
            config_maps=await fetch_data(source, pod, "configMap"),
            secrets=await fetch_data(source, pod, "secret"),
        )
