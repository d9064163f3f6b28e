"""Holds a stream to each gateway while this operator leads. Decides nothing."""

import asyncio
import json
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping

import aiohttp

from millrace_kubernetes.collection import Source
from millrace_kubernetes.connection import UNTIMED, Connection
from millrace_kubernetes.watch import Watch
from millrace_operator.gateways.loads import Loads, MalformedLineError
from millrace_operator.gateways.objects import GatewaySink
from millrace_operator.kube.kinds import POD, ServiceKey
from millrace_operator.observed.snapshot import Demand, PodLoad
from millrace_runtime.contract import LABEL_COMPONENT

LOG = logging.getLogger(__name__)
LOOK_SECONDS = 0.2
"""Between two looks at which gateways there are, and whether we lead."""
SILENT_SECONDS = 5.0
"""A gateway that tells nothing for so long is not counted as one that tells."""
RETRY_SECONDS = 1.0
LONGEST_LINE = 2**24
"""Bytes, doubled by aiohttp: the first line of a gateway with 300,000 replicas."""
OK = 200


class RefusedStreamError(Exception):
    """A gateway does not let us read."""


class Gateways:
    """Owner of the streams. `token` is what the Lease proves to be the leader's."""

    def __init__(
        self,
        namespace: str,
        token: str,
        is_leader: Callable[[], bool],
        on_request: Callable[[ServiceKey], None] = lambda _: None,
    ) -> None:
        """Begin with none. `on_request` is called with services that have got a request."""
        self._source = Source(POD.path(namespace), f"{LABEL_COMPONENT}=gateway")
        self._headers = {"Authorization": f"Bearer {token}", "User-Agent": "millrace-operator"}
        self._is_leader = is_leader
        self._on_request = on_request
        self._sink = GatewaySink()
        self._loads = Loads()
        self._told: dict[str, str] = {}
        """What was logged last of each gateway that can't be read."""

    def read(self, pods: Iterable[str]) -> Mapping[str, PodLoad]:
        """Return what gateways have at pods, by uid."""
        return self._loads.read(pods)

    def read_demand(self, key: ServiceKey) -> Demand:
        """Return what the gateways know of a service's requests."""
        return self._loads.read_demand(str(key))

    def read_arrivals(self, key: ServiceKey, seconds: float) -> float | None:
        """Return the requests a second that all gateways got; None while that is not known."""
        return self._loads.read_arrivals(str(key), seconds, time.time())

    def keep(self, keys: Collection[ServiceKey]) -> None:
        """Forget what is known of all services but these."""
        self._loads.keep(frozenset(map(str, keys)))

    @property
    def num_expected(self) -> int:
        """How many gateways there are, as far as this leader knows."""
        return self._loads.num_expected

    @property
    def num_silent(self) -> int:
        """How many of them tell nothing."""
        return self._loads.num_silent

    async def run(self, connection: Connection) -> None:
        """Follow the gateways until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(Watch(connection, self._source, self._sink).run())
            group.create_task(self._keep_streams())

    async def _keep_streams(self) -> None:
        streams: dict[tuple[str, str], asyncio.Task[None]] = {}
        connector = aiohttp.TCPConnector(limit=0)  # each gateway holds one, for as long as it lives
        async with aiohttp.ClientSession(
            connector=connector, headers=self._headers, read_bufsize=LONGEST_LINE
        ) as session:
            try:
                while True:
                    urls = self._list_urls(time.time())
                    await _end([streams.pop(gone) for gone in streams.keys() - urls.items()])
                    for uid, url in urls.items() - streams.keys():
                        streams[uid, url] = asyncio.create_task(self._follow(session, uid, url))
                    self._told = {uid: text for uid, text in self._told.items() if uid in urls}
                    await asyncio.sleep(LOOK_SECONDS)
            finally:
                await _end(streams.values())

    def _list_urls(self, now: float) -> dict[str, str]:
        """Return the streams to hold: none while somebody else leads."""
        if not self._is_leader():
            self._loads.begin(now)
            return {}
        urls = self._sink.list_urls(now)
        self._loads.expect(urls, now)
        return urls

    async def _follow(self, session: aiohttp.ClientSession, uid: str, url: str) -> None:
        """Read one gateway's lines, again and again."""
        while True:
            try:
                await self._read(session, uid, url)
                self._tell(uid, url, "it ended the stream")
            except Exception as error:  # noqa: BLE001  whatever it says, it is asked again
                self._tell(uid, url, str(error) or repr(error))
            finally:
                self._loads.lose(uid, time.time())
            await asyncio.sleep(RETRY_SECONDS)

    async def _read(self, session: aiohttp.ClientSession, uid: str, url: str) -> None:
        """Take in each line until the stream ends. Raises TimeoutError when it falls silent."""
        async with (
            asyncio.timeout(SILENT_SECONDS) as silence,
            session.get(url, timeout=UNTIMED, allow_redirects=False) as response,
        ):
            if response.status != OK:
                raise RefusedStreamError(f"it answers {response.status}")
            while line := await response.content.readline():
                self._take(uid, line)
                self._told.pop(uid, None)
                silence.reschedule(asyncio.get_running_loop().time() + SILENT_SECONDS)

    def _take(self, uid: str, line: bytes) -> None:
        """Take in a line. Raises MalformedLineError."""
        try:
            parsed = json.loads(line)
        except ValueError as error:
            raise MalformedLineError(f"no line of a gateway: {error}") from error
        for key in self._loads.note(uid, parsed, time.time()):
            namespace, _, name = key.partition("/")
            self._on_request(ServiceKey(namespace, name))

    def _tell(self, uid: str, url: str, text: str) -> None:
        """Log what goes wrong with a gateway, once."""
        if self._told.get(uid) != text:
            LOG.warning("the gateway at %s tells no loads: %s; trying again", url, text)
        self._told[uid] = text


async def _end(streams: Collection[asyncio.Task[None]]) -> None:
    for task in streams:
        task.cancel()
    await asyncio.gather(*streams, return_exceptions=True)
