"""Open-loop load: requests leave when they are due, whether or not earlier ones were answered.

`Load.run_in_turn` is another kind: it keeps a number of streams under way.

Counts at the client what became of every stream. Traffic goes to loopback addresses only, and every
run is bounded in time and in number of requests.
"""

import asyncio
import ipaddress
import json
import random
import time
import urllib.request
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import aiohttp

MAX_REQUESTS = 60_000
REQUEST_TIMEOUT_SECONDS = 180.0


@dataclass(frozen=True)
class Phase:
    """A constant mean rate, in requests a second, for some seconds."""

    seconds: float
    rate: float


@dataclass
class Stream:
    """What one client saw. Times are seconds since the load began; None where it never happened."""

    number: int
    asked: int
    """Tokens."""
    sent: float
    status: int | None = None
    first_token: float | None = None
    ended: float | None = None
    text: str = ""
    num_tokens: int | None = None
    """As the server counted them."""
    finish_reason: str | None = None
    error: str | None = None

    @property
    def time_to_first_token(self) -> float | None:
        """Seconds from sending to the first token."""
        return None if self.first_token is None else self.first_token - self.sent

    @property
    def time_per_output_token(self) -> float | None:
        """Mean seconds between two tokens. None where there were no two, or no end."""
        if self.first_token is None or self.ended is None or self.num_tokens is None or self.num_tokens < 2:
            return None
        return (self.ended - self.first_token) / (self.num_tokens - 1)

    @property
    def is_refused(self) -> bool:
        """The server said no before it began: 429, 503 or another error status."""
        return self.status is not None and self.status != 200

    @property
    def is_truncated(self) -> bool:
        """Begun, and ended without all of the tokens that it asked for."""
        return not self.is_refused and (self.finish_reason, self.num_tokens) != ("length", self.asked)


@dataclass(frozen=True)
class Target:
    """Where requests go and what they ask for: a completion of exactly `max_tokens` tokens."""

    url: str
    host: str | None = None
    model: str = "stories"
    prompt: str = "Once upon a time"
    max_tokens: int = 32
    key: str | None = None

    def __post_init__(self) -> None:
        address = urlsplit(self.url).hostname or ""
        if not ipaddress.ip_address(address).is_loopback:
            raise ValueError(f"a load goes to 127.0.0.0/8 only, not to {address}")

    @property
    def headers(self) -> dict[str, str]:
        """The Host header that names the service, where the address does not, and the client's key."""
        sent = {"Host": self.host, "Authorization": self.key and f"Bearer {self.key}"}
        return {name: value for name, value in sent.items() if value is not None}

    def body(self, number: int) -> dict[str, Any]:
        """Return the JSON of request `number`."""
        return {
            "model": self.model,
            "prompt": self.prompt,
            "max_tokens": self.max_tokens,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            "seed": number,
        }


@dataclass
class Load:
    """One run of open-loop traffic, and its streams so far."""

    target: Target
    streams: list[Stream] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)
    is_over: bool = False

    def end(self) -> None:
        """Send nothing more. From any thread."""
        self.is_over = True

    async def run(self, phases: Iterable[Phase], seed: int = 0) -> list[Stream]:
        """Send the phases' requests at Poisson times, await every stream's end, and return them all."""
        self.began = time.monotonic()
        async with _open_session() as session, asyncio.TaskGroup() as group:
            for due in poisson_times(phases, seed):
                await asyncio.sleep(max(0.0, self.began + due - time.monotonic()))
                if self.is_over:
                    break
                group.create_task(self._send(session, self._add_stream()))
        return self.streams

    async def run_in_turn(self, num_clients: int, seconds: float) -> list[Stream]:
        """Keep so many streams under way for at most so long: each client asks again when it has its end."""
        self.began = time.monotonic()
        async with _open_session() as session, asyncio.TaskGroup() as group:
            for _ in range(num_clients):
                group.create_task(self._send_in_turn(session, seconds))
        return self.streams

    async def _send_in_turn(self, session: aiohttp.ClientSession, seconds: float) -> None:
        while not self.is_over and self._now() < seconds and len(self.streams) < MAX_REQUESTS:
            await self._send(session, self._add_stream())

    def _add_stream(self) -> Stream:
        self.streams.append(self._new_stream(len(self.streams)))
        return self.streams[-1]

    async def find_altered(self, count: int) -> list[Stream]:
        """Return which of `count` whole streams, spread over all, say another text than alone."""
        whole = [stream for stream in self.streams if not stream.is_refused and not stream.is_truncated]
        chosen = whole[:: max(1, len(whole) // count)][:count]
        assert chosen, "no stream was whole"
        async with aiohttp.ClientSession() as session:
            alone = [self._new_stream(stream.number) for stream in chosen]
            for stream in alone:
                await self._send(session, stream)
        return [one for one, other in zip(chosen, alone, strict=True) if one.text != other.text]

    def _new_stream(self, number: int) -> Stream:
        return Stream(number, self.target.max_tokens, sent=self._now())

    async def _send(self, session: aiohttp.ClientSession, stream: Stream) -> None:
        try:
            url, body = f"{self.target.url}/v1/completions", self.target.body(stream.number)
            async with session.post(url, json=body, headers=self.target.headers) as response:
                stream.status = response.status
                await self._read(stream, response)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            stream.error = repr(error)
        stream.ended = self._now()

    async def _read(self, stream: Stream, response: aiohttp.ClientResponse) -> None:
        if response.status != 200:
            stream.error = (await response.text())[:500]
            return
        async for event in server_sent_events(response):
            if "error" in event:
                stream.error = json.dumps(event["error"])
                return
            if usage := event.get("usage"):
                stream.num_tokens = usage["completion_tokens"]
            for choice in event["choices"]:
                stream.first_token = stream.first_token or self._now()
                stream.text += choice["text"]
                stream.finish_reason = choice["finish_reason"] or stream.finish_reason

    def _now(self) -> float:
        return time.monotonic() - self.began


def _open_session() -> aiohttp.ClientSession:
    connector = aiohttp.TCPConnector(limit=0, force_close=False)
    timeout = aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_SECONDS)
    return aiohttp.ClientSession(connector=connector, timeout=timeout)


def ask_for_token(target: Target, seconds: float = 60.0) -> None:
    """Ask for one token and see it come. Raises HTTPError, and TimeoutError where no answer comes in time."""
    body = {"model": target.model, "prompt": target.prompt, "max_tokens": 1}
    request = urllib.request.Request(
        f"{target.url}/v1/completions",
        json.dumps(body).encode(),
        {**target.headers, "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=seconds) as answer:
        assert json.loads(answer.read())["usage"]["completion_tokens"] == 1


def check_size(phases: Iterable[Phase]) -> None:
    """Refuse phases of more than MAX_REQUESTS: they would end early. Raises ValueError."""
    expected = sum(phase.seconds * phase.rate for phase in phases)
    if expected > MAX_REQUESTS:
        raise ValueError(f"{expected:.0f} requests are more than {MAX_REQUESTS}: make the load shorter")


def poisson_times(phases: Iterable[Phase], seed: int) -> Iterator[float]:
    """Yield the times, in seconds, at which requests are due; at most MAX_REQUESTS."""
    draw = random.Random(seed)
    begin, num_sent = 0.0, 0
    for phase in phases:
        due = begin
        while phase.rate > 0 and num_sent < MAX_REQUESTS:
            due += draw.expovariate(phase.rate)
            if due >= begin + phase.seconds:
                break
            num_sent += 1
            yield due
        begin += phase.seconds


async def server_sent_events(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    """Yield the JSON of each event until `[DONE]`."""
    async for line in response.content:
        if line.startswith(b"data: ") and line.strip() != b"data: [DONE]":
            yield json.loads(line[6:])


def percentile(values: Iterable[float], q: float) -> float:
    """Return the q-th percentile (0–100), by the nearest rank. NaN without values."""
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(len(ranked) * q / 100))] if ranked else float("nan")


def ttft_percentile(streams: Iterable[Stream], q: float, *, since: float, until: float) -> float:
    """Return the q-th percentile of the time to first token of the streams sent in [since, until).

    A stream that never had its first token counts as infinitely late, so losing streams can't help.
    """
    sent = [s for s in streams if since <= s.sent < until]
    return percentile((t if (t := s.time_to_first_token) is not None else float("inf") for s in sent), q)
