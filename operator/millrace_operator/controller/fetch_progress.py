"""Asks the pods that fetch a model how far they are, while this operator leads.

It is shown, and decides nothing: a policy may let nobody reach them.
"""

import asyncio
import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import aiohttp

from millrace_operator.controller.cache import Cache
from millrace_operator.kube.kinds import Obj, ServiceKey
from millrace_operator.observed.pod_status import read_fetch
from millrace_operator.observed.snapshot import Fetched
from millrace_runtime import contract

LOG = logging.getLogger(__name__)
PERIOD_SECONDS = 2.0
TIMEOUT = aiohttp.ClientTimeout(total=2.0)
MOST_AT_ONCE = 64
MOST_BYTES = 2**60
LONGEST_ANSWER = 1024
"""Bytes. A pod is a tenant's: whatever it answers, no more is read."""
STEP_PERCENT = 10
STEP_SECONDS = 30.0
"""What is told moves by so much, or after so long: no status is written each second."""
NOTHING: Mapping[str, Fetched] = MappingProxyType({})


class _Pod(NamedTuple):
    service: ServiceKey
    name: str
    address: str


class _Told(NamedTuple):
    fetched: Fetched
    at: float


class Fetches:
    """Owner of what is told of pods that fetch their model, by service and pod."""

    def __init__(
        self,
        cache: Cache,
        on_change: Callable[[ServiceKey], None],
        is_leader: Callable[[], bool],
        *,
        port: int = contract.PORT_PROGRESS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._cache = cache
        self._on_change = on_change
        self._is_leader = is_leader
        self._port = port
        self._clock = clock
        self._told: dict[_Pod, _Told] = {}
        self._by_service: dict[ServiceKey, dict[str, Fetched]] = {}

    def read(self, key: ServiceKey) -> Mapping[str, Fetched]:
        """Return how far the service's pods are, by name."""
        return self._by_service.get(key, NOTHING)

    async def run(self) -> None:
        """Ask again and again, until cancelled."""
        connector = aiohttp.TCPConnector(limit=MOST_AT_ONCE)
        async with aiohttp.ClientSession(connector=connector, timeout=TIMEOUT) as session:
            while True:
                try:
                    await self.refresh(session)
                except Exception:  # the next time may do better
                    LOG.exception("how far fetches are is not known anew")
                await asyncio.sleep(PERIOD_SECONDS)

    async def refresh(self, session: aiohttp.ClientSession) -> None:
        """Ask each pod. What is known of pods that fetch no more is forgotten."""
        pods = list(_find_running(self._cache.fetching() if self._is_leader() else {}))
        gate = asyncio.Semaphore(MOST_AT_ONCE)
        answers = await asyncio.gather(*(self._ask(session, gate, pod) for pod in pods))
        before, self._told = self._told, {}
        for pod, answer in zip(pods, answers, strict=True):
            held = before.get(pod)
            told = _choose_told(held, answer, self._clock())
            if told is not None:
                self._told[pod] = told
            if told is not held:
                self._on_change(pod.service)
        self._by_service = {}
        for pod, told in self._told.items():
            self._by_service.setdefault(pod.service, {})[pod.name] = told.fetched

    async def _ask(
        self, session: aiohttp.ClientSession, gate: asyncio.Semaphore, pod: _Pod
    ) -> Fetched | None:
        """Return what a pod answers; None where it answers nothing."""
        host = f"[{pod.address}]" if ":" in pod.address else pod.address
        url = f"http://{host}:{self._port}{contract.PATH_PROGRESS}"
        try:
            async with gate, session.get(url, allow_redirects=False) as response:
                text = await response.content.read(LONGEST_ANSWER)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            LOG.debug("%s: pod %s does not tell how far it is: %r", pod.service, pod.name, error)
            return None
        return read_answer(text)


def _choose_told(held: _Told | None, answer: Fetched | None, now: float) -> _Told | None:
    """Return what is told of a pod from now on: `held` until its answer is a step farther."""
    if answer is None:
        return held
    if held is None:
        return _Told(answer, now)
    told = held.fetched
    is_far = (answer.percent or 0) // STEP_PERCENT != (told.percent or 0) // STEP_PERCENT
    is_due = answer.done_bytes != told.done_bytes and now >= held.at + STEP_SECONDS
    is_other = answer.total_bytes != told.total_bytes
    return _Told(answer, now) if is_far or is_due or is_other else held


def read_answer(text: bytes) -> Fetched | None:
    """Return what a pod answers; None where it says nothing, or nothing that can be so."""
    try:
        told: dict[str, Any] = json.loads(text)
        found = Fetched(told.get("totalBytes"), told["doneBytes"], told["bytesPerSecond"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):  # the last where it is deep
        return None
    most = MOST_BYTES - 1 if found.total_bytes is None else found.total_bytes
    counts = (most, found.done_bytes, found.bytes_per_second)
    is_whole = all(type(count) is int and 0 <= count < MOST_BYTES for count in counts)
    return found if is_whole and found.done_bytes <= most else None


def _find_running(fetching: Mapping[ServiceKey, tuple[Obj, ...]]) -> Iterator[_Pod]:
    """Yield the pods whose model is being fetched. They alone say so: status may tell of another pod."""
    for key, pods in fetching.items():
        for pod in pods:
            status = pod.get("status", {})
            address = status.get("podIP")
            if read_fetch(status).is_running and address:
                yield _Pod(key, pod["metadata"]["name"], address)
