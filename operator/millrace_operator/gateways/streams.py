"""A stream from each gateway that may have requests, while this operator leads."""

import asyncio
import json
import logging
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import aiohttp

from millrace_kubernetes.collection import Object, Source
from millrace_kubernetes.connection import UNTIMED, Connection
from millrace_kubernetes.watch import Watch
from millrace_operator.api.conditions import find_condition, parse_time
from millrace_operator.gateways.loads import Loads, MalformedLineError
from millrace_operator.kube.kinds import POD, ServiceKey
from millrace_operator.observed.revisions import LOST_SECONDS
from millrace_operator.observed.snapshot import Demand, PodLoad
from millrace_runtime.contract import (
    LABEL_COMPONENT,
    PATH_LOADS,
    PORT_GATEWAY_METRICS,
    PORT_NAME_HTTP,
    PORT_NAME_METRICS,
)

LOG = logging.getLogger(__name__)
LOOK_SECONDS = 0.2
"""Between two checks which gateways there are, and whether we lead."""
SILENT_SECONDS = 5.0
"""A gateway that reports nothing for so long counts as silent."""
RETRY_SECONDS = 1.0
LONGEST_LINE = 2**24
"""In bytes; aiohttp doubles it. The first line of a gateway with 300,000 replicas."""
OK = 200


class RefusedStreamError(Exception):
    """A gateway refuses the stream."""


class Gateways:
    """Owner of the streams. The Lease proves that `token` is the leader's."""

    def __init__(
        self,
        namespace: str,
        token: str,
        is_leader: Callable[[], bool],
        on_request: Callable[[ServiceKey], None] = lambda _: None,
    ) -> None:
        """Begins without streams. Calls `on_request` with each service that has got a request."""
        self._source = Source(POD.path(namespace), f"{LABEL_COMPONENT}=gateway")
        self._headers = {"Authorization": f"Bearer {token}", "User-Agent": "millrace-operator"}
        self._is_leader = is_leader
        self._on_request = on_request
        self._sink = GatewaySink()
        self._loads = Loads()
        self._logged: dict[str, str] = {}
        """The last log text of each gateway whose stream fails."""

    def read(self, pods: Iterable[str]) -> Mapping[str, PodLoad]:
        """Return the loads that gateways have at pods, by uid."""
        return self._loads.read(pods)

    def read_demand(self, key: ServiceKey) -> Demand:
        """Return what the gateways know of a service's requests."""
        return self._loads.read_demand(str(key))

    def read_arrivals(self, key: ServiceKey, seconds: float) -> float | None:
        """Return the requests a second at all gateways; None while they are unknown."""
        return self._loads.read_arrivals(str(key), seconds, time.time())

    def count_waiting(self, key: ServiceKey) -> int:
        """Return how many of a service's requests wait in gateways until replicas have room."""
        return self._loads.count_waiting(str(key), time.time())

    def keep(self, keys: Collection[ServiceKey]) -> None:
        """Forget all other services."""
        self._loads.keep(frozenset(map(str, keys)))

    @property
    def num_expected(self) -> int:
        """How many gateways there are, as far as this leader knows."""
        return self._loads.num_expected

    @property
    def num_silent(self) -> int:
        """How many of them are silent."""
        return self._loads.num_silent

    async def run(self, connection: Connection) -> None:
        """Follow the gateways until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(Watch(connection, self._source, self._sink).run())
            group.create_task(self._keep_streams())

    async def _keep_streams(self) -> None:
        streams: dict[tuple[str, str], asyncio.Task[None]] = {}
        connector = aiohttp.TCPConnector(limit=0)  # each gateway holds one connection
        async with aiohttp.ClientSession(
            connector=connector, headers=self._headers, read_bufsize=LONGEST_LINE
        ) as session:
            try:
                while True:
                    urls = self._list_urls(time.time())
                    await _end([streams.pop(gone) for gone in streams.keys() - urls.items()])
                    for uid, url in urls.items() - streams.keys():
                        streams[uid, url] = asyncio.create_task(self._follow(session, uid, url))
                    self._logged = {uid: text for uid, text in self._logged.items() if uid in urls}
                    await asyncio.sleep(LOOK_SECONDS)
            finally:
                await _end(streams.values())

    def _list_urls(self, now: float) -> dict[str, str]:
        """Return the streams to hold: none while another replica leads."""
        if not self._is_leader():
            self._loads.begin(now)
            return {}
        urls = self._sink.list_urls(now)
        self._loads.expect(urls, now)
        return urls

    async def _follow(self, session: aiohttp.ClientSession, uid: str, url: str) -> None:
        """Read one gateway's lines, and connect again after each end."""
        while True:
            try:
                await self._read(session, uid, url)
                self._log_failure(uid, url, "it ended the stream")
            except Exception as error:  # noqa: BLE001  after any error we ask again
                self._log_failure(uid, url, str(error) or repr(error))
            finally:
                self._loads.lose(uid, time.time())
            await asyncio.sleep(RETRY_SECONDS)

    async def _read(self, session: aiohttp.ClientSession, uid: str, url: str) -> None:
        """Record each line until the stream ends. Raises TimeoutError when it falls silent."""
        async with (
            asyncio.timeout(SILENT_SECONDS) as silence,
            session.get(url, timeout=UNTIMED, allow_redirects=False) as response,
        ):
            if response.status != OK:
                raise RefusedStreamError(f"it answers {response.status}")
            while line := await response.content.readline():
                self._record(uid, line)
                self._logged.pop(uid, None)
                silence.reschedule(asyncio.get_running_loop().time() + SILENT_SECONDS)

    def _record(self, uid: str, line: bytes) -> None:
        """Record a line. Raises MalformedLineError."""
        try:
            parsed = json.loads(line)
        except ValueError as error:
            raise MalformedLineError(f"no line of a gateway: {error}") from error
        for key in self._loads.note(uid, parsed, time.time()):
            namespace, _, name = key.partition("/")
            self._on_request(ServiceKey(namespace, name))

    def _log_failure(self, uid: str, url: str, text: str) -> None:
        """Log a gateway's failure, once."""
        if self._logged.get(uid) != text:
            LOG.warning("the gateway at %s reports no loads: %s; trying again", url, text)
        self._logged[uid] = text


async def _end(streams: Collection[asyncio.Task[None]]) -> None:
    for task in streams:
        task.cancel()
    await asyncio.gather(*streams, return_exceptions=True)


class _Gateway(NamedTuple):
    url: str
    until: float
    """When it is gone at the latest, in seconds since 1970; infinity while nobody has deleted it."""


class GatewaySink:
    """Keeps the gateways that may have requests, as a watch reports them."""

    def __init__(self) -> None:
        self._gateways: dict[str, _Gateway] = {}
        """By their pods' uids."""

    def list_urls(self, now: float) -> dict[str, str]:
        """Return the URL of each gateway's stream, by its pod's uid. `now` is in seconds since 1970."""
        return {uid: gateway.url for uid, gateway in self._gateways.items() if now < gateway.until}

    def replace(self, items: Sequence[Object], _version: str) -> None:
        """Replace all gateways with this complete list."""
        self._gateways = {}
        for item in items:
            self.apply(item)

    def apply(self, item: Object) -> None:
        """Add a gateway, or replace it with this newer version."""
        self.delete(item)
        address = (item.get("status") or {}).get("podIP")
        if address and _may_have_requests(item):
            host = f"[{address}]" if ":" in address else address
            url = f"http://{host}:{_find_port(item)}{PATH_LOADS}"
            self._gateways[item["metadata"]["uid"]] = _Gateway(url, _find_end(item))

    def delete(self, item: Object) -> None:
        """Remove a gateway."""
        self._gateways.pop(item["metadata"]["uid"], None)


def _may_have_requests(pod: Object) -> bool:
    """Whether a gateway is Ready, is ending, or was Ready: its clients' connections outlive that."""
    status = pod.get("status") or {}
    ready = find_condition(dict(status), "Ready") or {}
    if ready.get("status") == "True":
        return True
    if status.get("phase") != "Running":
        return False
    return "deletionTimestamp" in pod["metadata"] or _was_ready(pod, ready.get("lastTransitionTime"))


def _was_ready(pod: Object, unready_since: str | None) -> bool:
    """Whether it turned unready after its container's start. A gateway that was never Ready did so before."""
    own = {one.get("name") for one in pod["spec"]["containers"] if PORT_NAME_HTTP in _name_ports(one)}
    statuses = [one for one in pod["status"].get("containerStatuses") or () if one.get("name") in own]
    starts = [((one.get("state") or {}).get("running") or {}).get("startedAt") for one in statuses]
    start = parse_time(starts[0]) if starts else None
    return start is not None and (parse_time(unready_since) or 0.0) > start


def _find_end(pod: Object) -> float:
    """Return when a pod is gone at the latest. On a lost node the object would stay for ever."""
    ends = parse_time(pod["metadata"].get("deletionTimestamp"))  # it includes the grace
    return math.inf if ends is None else ends + LOST_SECONDS


def _find_port(pod: Object) -> int:
    """Return the port on which the gateway reports its loads."""
    named = map(_name_ports, (pod.get("spec") or {}).get("containers") or ())
    ports = next((found for found in named if PORT_NAME_HTTP in found), {})
    return ports.get(PORT_NAME_METRICS, PORT_GATEWAY_METRICS)


def _name_ports(container: Object) -> dict[str, int]:
    """Return a container's ports by name. The gateway's own container has a port for clients."""
    return {str(port.get("name")): int(port["containerPort"]) for port in container.get("ports") or ()}
