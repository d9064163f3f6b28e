"""Asks the pods that fetch a model for their progress, while this operator leads.

Status shows the progress, and no decision uses it: a network policy may keep the operator from asking.
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
from millrace_operator.observed.fetch_run import read_fetch
from millrace_operator.observed.snapshot import Fetched
from millrace_runtime import contract

LOG = logging.getLogger(__name__)
PERIOD_SECONDS = 2.0
TIMEOUT = aiohttp.ClientTimeout(total=2.0)
MOST_AT_ONCE = 64
MOST_BYTES = 2**60
LONGEST_ANSWER = 1024
"""In bytes. A pod belongs to a tenant, so the operator reads no more of its answer."""
STEP_PERCENT = 10
STEP_SECONDS = 30.0
"""Status shows progress after such a step or such a time: the operator does not write it each second."""
NOTHING: Mapping[str, Fetched] = MappingProxyType({})


class _Pod(NamedTuple):
    service: ServiceKey
    name: str
    address: str


class _Shown(NamedTuple):
    fetched: Fetched
    at: float


class Fetches:
    """Owner of the progress that status shows of the pods that fetch a model, by service and pod."""

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
        self._shown: dict[_Pod, _Shown] = {}
        self._by_service: dict[ServiceKey, dict[str, Fetched]] = {}

    def read(self, key: ServiceKey) -> Mapping[str, Fetched]:
        """Return the progress of the service's pods, by name."""
        return self._by_service.get(key, NOTHING)

    async def run(self) -> None:
        """Ask periodically, until cancelled."""
        connector = aiohttp.TCPConnector(limit=MOST_AT_ONCE)
        async with aiohttp.ClientSession(connector=connector, timeout=TIMEOUT) as session:
            while True:
                try:
                    await self.refresh(session)
                except Exception:  # the next time may succeed
                    LOG.exception("cannot read the progress of fetches")
                await asyncio.sleep(PERIOD_SECONDS)

    async def refresh(self, session: aiohttp.ClientSession) -> None:
        """Ask each pod. Forget the pods that no longer fetch."""
        pods = list(_find_running(self._cache.fetching() if self._is_leader() else {}))
        gate = asyncio.Semaphore(MOST_AT_ONCE)
        answers = await asyncio.gather(*(self._ask(session, gate, pod) for pod in pods))
        before, self._shown = self._shown, {}
        for pod, answer in zip(pods, answers, strict=True):
            held = before.get(pod)
            shown = _choose_shown(held, answer, self._clock())
            if shown is not None:
                self._shown[pod] = shown
            if shown is not held:
                self._on_change(pod.service)
        self._by_service = {}
        for pod, shown in self._shown.items():
            self._by_service.setdefault(pod.service, {})[pod.name] = shown.fetched

    async def _ask(
        self, session: aiohttp.ClientSession, gate: asyncio.Semaphore, pod: _Pod
    ) -> Fetched | None:
        """Return a pod's answer; None without one."""
        host = f"[{pod.address}]" if ":" in pod.address else pod.address
        url = f"http://{host}:{self._port}{contract.PATH_PROGRESS}"
        try:
            async with gate, session.get(url, allow_redirects=False) as response:
                text = await response.content.read(LONGEST_ANSWER)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            LOG.debug("%s: pod %s does not report its progress: %r", pod.service, pod.name, error)
            return None
        return read_answer(text)


def _choose_shown(held: _Shown | None, answer: Fetched | None, now: float) -> _Shown | None:
    """Return the progress to show of a pod from now on: `held`, until the answer is a step further."""
    if answer is None:
        return held
    if held is None:
        return _Shown(answer, now)
    shown = held.fetched
    is_far = (answer.percent or 0) // STEP_PERCENT != (shown.percent or 0) // STEP_PERCENT
    is_due = answer.done_bytes != shown.done_bytes and now >= held.at + STEP_SECONDS
    is_other = answer.total_bytes != shown.total_bytes
    return _Shown(answer, now) if is_far or is_due or is_other else held


def read_answer(text: bytes) -> Fetched | None:
    """Return a pod's answer; None for an unreadable or impossible one."""
    try:
        shown: dict[str, Any] = json.loads(text)
        found = Fetched(shown.get("totalBytes"), shown["doneBytes"], shown["bytesPerSecond"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):  # the last for deep nesting
        return None
    most = MOST_BYTES - 1 if found.total_bytes is None else found.total_bytes
    counts = (most, found.done_bytes, found.bytes_per_second)
    is_whole = all(type(count) is int and 0 <= count < MOST_BYTES for count in counts)
    return found if is_whole and found.done_bytes <= most else None


def _find_running(fetching: Mapping[ServiceKey, tuple[Obj, ...]]) -> Iterator[_Pod]:
    """Yield the pods whose model is being fetched. Only the pods show it: status may speak of another pod."""
    for key, pods in fetching.items():
        for pod in pods:
            status = pod.get("status", {})
            address = status.get("podIP")
            if read_fetch(status).is_running and address:
                yield _Pod(key, pod["metadata"]["name"], address)
