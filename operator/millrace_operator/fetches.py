"""Asks the pods that fetch a model how far they are, while this operator leads."""

import asyncio
import json
import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import aiohttp

from millrace_operator.cluster.kinds import Obj, ServiceKey
from millrace_operator.course import Course
from millrace_operator.ingest.cache import Cache
from millrace_operator.reconcile.pod_status import find_fetcher, find_state
from millrace_operator.reconcile.snapshot import Fetched
from millrace_operator.resources.conditions import parse_time
from millrace_operator.turns import Asked, Turns
from millrace_runtime import contract

LOG = logging.getLogger(__name__)
PERIOD_SECONDS = 2.0
TIMEOUT = aiohttp.ClientTimeout(total=2.0)
"""From the beginning of a pod's own turn."""
MOST_AT_ONCE = 64
MOST_BYTES = 2**60
LONGEST_QUIET = 7200.0
"""Seconds. No fetch waits for longer than half of it; the pod's clock may be another."""
_NOTHING_YET: dict[str, Any] = {"doneBytes": 0, "bytesPerSecond": 0}
"""What a pod means that tells of a quiet alone: it has no list of the files yet."""
LONGEST_ANSWER = 1024
"""Bytes. A pod is a tenant's: whatever it answers, no more is read."""
_Pod = tuple[ServiceKey, str]
NOTHING: Mapping[str, Fetched] = MappingProxyType({})


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
        self._told: dict[ServiceKey, dict[str, Fetched]] = {}
        self._turns = Turns()
        self._courses: dict[_Pod, Course] = {}

    def read(self, key: ServiceKey) -> Mapping[str, Fetched]:
        """Return how far the service's pods are, by name."""
        return self._told.get(key, NOTHING)

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
        """Ask each pod whose turn it is. What is known of pods that fetch no more is forgotten."""
        fetching = self._cache.fetching() if self._is_leader() else {}
        self._forget_all_but(
            {(key, pod["metadata"]["name"]) for key, pods in fetching.items() for pod in pods}
        )
        pods = list(_find_running(fetching))
        answers = await self._ask_all(session, self._turns.take(pods))
        before, self._told = self._told, {}
        for one in pods:
            held, answer = before.get(one.service, {}).get(one.pod), answers.get(one)
            told = _end_quiet(held, self._clock()) if answer is None else self._follow(one, answer, held)
            if told is not None:
                self._told.setdefault(one.service, {})[one.pod] = told
            if told is not held:
                self._on_change(one.service)

    def _follow(self, one: Asked, answer: Fetched, held: Fetched | None) -> Fetched:
        """Return what is told of a pod after its answer. `held` was told before."""
        course = self._courses.get((one.service, one.pod))
        if course is None and answer.is_quiet_alone:
            return _greet(answer, held, one.began)
        course = Course.begin(answer, one.began) if course is None else course.go_on(answer, one.began)
        self._courses[one.service, one.pod] = course
        return course.told

    def _forget_all_but(self, pods: Collection[_Pod]) -> None:
        """Forget how other pods got on. One whose container waits to begin anew is remembered."""
        self._courses = {pod: course for pod, course in self._courses.items() if pod in pods}

    async def _ask_all(
        self, session: aiohttp.ClientSession, pods: list[Asked]
    ) -> dict[Asked, Fetched | None]:
        """Return what the pods answer. The time of each begins with its turn, however many are before it."""
        gate = asyncio.Semaphore(MOST_AT_ONCE)

        async def ask(one: Asked) -> Fetched | None:
            async with gate:
                try:
                    return await self._ask(session, one)
                except Exception:  # one pod's trouble is not the others': it is asked ever more rarely
                    LOG.exception("%s: what pod %s answers surprises", one.service, one.pod)
                    self._turns.note(one, is_silent=True)
                    return None

        return dict(zip(pods, await asyncio.gather(*map(ask, pods)), strict=True))

    async def _ask(self, session: aiohttp.ClientSession, asked: Asked) -> Fetched | None:
        host = f"[{asked.address}]" if ":" in asked.address else asked.address
        url = f"http://{host}:{self._port}{contract.PATH_PROGRESS}"
        try:
            async with session.get(url, allow_redirects=False) as response:
                text = await response.content.read(LONGEST_ANSWER)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            LOG.debug("%s: pod %s does not tell how far it is: %r", asked.service, asked.pod, error)
            self._turns.note(asked, is_silent=isinstance(error, TimeoutError))
            return None
        found = read_answer(text, self._clock())
        self._turns.note(asked, is_silent=False)
        return found


def _greet(answer: Fetched, held: Fetched | None, began: float | None) -> Fetched:
    """Return what is told of a pod that told of a quiet alone. What it has, it has still to say."""
    if held is not None and held.quiet_until == answer.quiet_until:
        return held
    return answer._replace(at=answer.at if began is None else min(began, answer.at), is_first=True)


def _end_quiet(held: Fetched | None, now: float) -> Fetched | None:
    """Return what is told of a pod that answers nothing: no quiet that is over; None where that was all."""
    if held is None or held.quiet_until is None or now < held.quiet_until:
        return held
    return None if held.is_quiet_alone else held._replace(quiet_until=None)


def read_answer(text: bytes, now: float) -> Fetched | None:
    """Return what a pod answers; None where it says nothing, or nothing that can be so."""
    try:
        told: dict[str, Any] = json.loads(text)
        quiet = _read_quiet(told.get("quietUntil"), now)
        told = told if quiet is None else _NOTHING_YET | told
        found = Fetched(
            told.get("totalBytes"), told["doneBytes"], told["bytesPerSecond"], now, quiet_until=quiet
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):  # the last where it is deep
        return None
    most = MOST_BYTES - 1 if found.total_bytes is None else found.total_bytes
    counts = (most, found.done_bytes, found.bytes_per_second)
    is_whole = all(type(count) is int and 0 <= count < MOST_BYTES for count in counts)
    return found if is_whole and found.done_bytes <= most else None


def _read_quiet(value: Any, now: float) -> float | None:
    """Return until when a source asks for quiet; None where it does not, or not for a time that can be so."""
    return float(value) if type(value) is int and now <= value <= now + LONGEST_QUIET else None


def _find_running(fetching: Mapping[ServiceKey, tuple[Obj, ...]]) -> Iterator[Asked]:
    """Yield the pods whose model is being fetched. They alone say so: status may tell of another pod."""
    for key, pods in fetching.items():
        for pod in pods:
            status = pod.get("status", {})
            running, address = find_state(find_fetcher(status), "running"), status.get("podIP")
            if running is not None and address:
                yield Asked(key, pod["metadata"]["name"], address, parse_time(running.get("startedAt")))
