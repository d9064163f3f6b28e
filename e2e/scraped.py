"""What Prometheus scrapes in tests of the autoscaler's questions.

Replicas' and gateways' real metrics, led by a steady load whose figures a test knows, and vLLM pods of
somebody else under the same names.
"""

import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest

from millrace_gateway.report.metrics import Metrics as GatewayMetrics
from millrace_gateway.report.metrics import Outcome
from millrace_gateway.route.objects import ServiceChanges
from millrace_gateway.route.objects import ServiceKey as GatewayKey
from millrace_runtime.api.engine_client import EngineClient
from millrace_runtime.api.metrics import ReplicaMetrics
from millrace_runtime.protocol.messages import EngineReady, Stats, StepTiming
from millrace_runtime.protocol.step import Placement

PROMPT_TOKENS, GENERATION_TOKENS = 400, 50
STEP_SECONDS, STEP_SEQUENCES, STEP_TOKENS, STEP_CONTEXT = 0.02, 6, 20, 2400
STEPS_PER_SECOND = 40
TRIALS = (
    StepTiming(0.01, 1, 1, 8, is_decode_only=True),
    StepTiming(0.05, 1, 512, 512, is_decode_only=False),
    StepTiming(0.015, 8, 8, 4160, is_decode_only=True),
)
"""What a replica tried before its first request."""
PLACEMENT = Placement("cuda", "NVIDIA H100 80GB HBM3", "bfloat16", "FromCheckpoint", 2)
FAST, SLOW = 0.45, 2.0
"""Seconds to the first token: of nine requests in ten, and of the tenth."""
QUEUED, TOKEN_SECONDS = 0.18, 0.012


class Replica:
    """A replica under a steady load. Its counters move up to the moment at which they are read."""

    def __init__(
        self, rate: float, running: int = 0, waiting: int = 0, clock: Callable[[], float] = time.time
    ) -> None:
        self._rate = rate
        self._clock = clock
        self._sockets = socket.socketpair()
        engine = EngineClient(self._sockets[0])
        engine.ready = EngineReady(2048, 1000, 16000, 16, 32, 1, PLACEMENT, {"imports": 0.1}, list(TRIALS))
        engine.stats = Stats(waiting, running, 1000, 750, 0)
        # Sequences that are open are streams of real clients; here they are a number alone.
        engine._streams = dict.fromkeys(range(running))  # type: ignore[assignment]
        self._metrics = ReplicaMetrics(engine, "model")
        self._in_flight = running + waiting
        self._metrics.num_received = self._in_flight
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self._metrics)
        self._began = clock()
        self._requests = self._steps = 0
        self.is_broken = False

    def render(self) -> bytes | None:
        """The page, None while it does not answer."""
        if self.is_broken:
            return None
        passed = self._clock() - self._began
        for _ in range(round(passed * self._rate) - self._requests):
            self._requests += 1
            self._serve_one()
        for _ in range(round(passed * STEPS_PER_SECOND) - self._steps):
            self._steps += 1
            self._metrics.observe_step(
                StepTiming(STEP_SECONDS, STEP_SEQUENCES, STEP_TOKENS, STEP_CONTEXT, self._steps % 4 != 0)
            )
        return generate_latest(self._registry)

    def _serve_one(self) -> None:
        metrics = self._metrics
        metrics.num_received += 2
        metrics.rejected["bad_request"] += 1  # a request of a client's fault for each good one
        metrics.queue_time.observe(QUEUED)
        metrics.time_to_first_token.observe(SLOW if self._requests % 10 == 0 else FAST)
        ended: Any = SimpleNamespace(
            finish_reason="length",
            num_prompt_tokens=PROMPT_TOKENS,
            num_cached_tokens=0,
            num_tokens=GENERATION_TOKENS,
            num_first_tokens=1,
            first_token_at=0.0,
            last_token_at=TOKEN_SECONDS * (GENERATION_TOKENS - 1),
        )
        metrics.finish(ended, 0.0, 1.0)

    def close(self) -> None:
        """Give its sockets back."""
        for end in self._sockets:
            end.close()


@dataclass
class Moment:
    """A clock that stands where a test sets it."""

    now: float
    """In seconds since 1970."""

    def __call__(self) -> float:
        """Return that."""
        return self.now


class Recording:
    """A replica's pages as scrapes at times of the past found them: one page, each sample with its time."""

    def __init__(self, replica: Replica, moment: Moment, times: Sequence[float]) -> None:
        self._page = b""
        for at in times:
            moment.now = at
            self._page += _stamp(replica.render() or b"", at)
        replica.close()
        self._num_asked = 0

    @property
    def is_scraped(self) -> bool:
        """Whether Prometheus has it: who asks again has taken in the answer before."""
        return self._num_asked > 2

    def render(self) -> bytes | None:
        """The page, twice in case that the first answer was lost; then nothing."""
        self._num_asked += 1
        return b"" if self.is_scraped else self._page

    def close(self) -> None:
        """Nothing is held."""


def _stamp(page: bytes, at: float) -> bytes:
    """Return a page whose samples have a time of their own, in place of that of the scrape."""
    stamp = b" %d\n" % round(1000 * at)
    return b"".join(line + stamp for line in page.splitlines() if not line.startswith(b"#"))


class Gateway:
    """A gateway that receives requests for services, each at its rate."""

    def __init__(self, rates: dict[GatewayKey, float]) -> None:
        self._metrics, self._rates = GatewayMetrics(), rates
        self._metrics.track(ServiceChanges(added=rates))
        self._began, self._counted = time.time(), dict.fromkeys(rates, 0)

    def render(self) -> bytes | None:
        """The page."""
        for key, rate in self._rates.items():
            due = round((time.time() - self._began) * rate)
            for _ in range(due - self._counted[key]):
                self._metrics.begin(key).end(Outcome.COMPLETED)
            self._counted[key] = due
        return self._metrics.render()

    def close(self) -> None:
        """Nothing is held."""


class Foreign:
    """vLLM of somebody else: the same names, much load, and labels of its own."""

    def render(self) -> bytes | None:
        """The page."""
        count = round(time.time() % 1e6) * 1000
        return f"""# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{model_name="other",engine="0"}} 500
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{{model_name="other",engine="0"}} 900
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{{model_name="other",engine="0"}} 1
# TYPE vllm:request_prompt_tokens histogram
vllm:request_prompt_tokens_sum{{model_name="other",engine="0"}} {count * 9999}
vllm:request_prompt_tokens_count{{model_name="other",engine="0"}} {count}
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{{model_name="other",engine="0",le="0.5"}} 0
vllm:time_to_first_token_seconds_bucket{{model_name="other",engine="0",le="+Inf"}} {count}
""".encode()

    def close(self) -> None:
        """Nothing is held."""


Page = Replica | Recording | Gateway | Foreign


@dataclass
class Pages:
    """What each pod shows, by the path under which it is scraped."""

    address: str = ""
    by_path: dict[str, Page] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def render(self, path: str) -> bytes | None:
        """A pod's page; two scrapes at once wait for each other."""
        with self.lock:
            page = self.by_path.get(path)
            return page.render() if page else None


@contextmanager
def serving_pages() -> Iterator[Pages]:
    """Serve them on loopback, each under its path."""
    pages = Pages()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _make_handler(pages.render))
    pages.address = f"127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield pages
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
        for page in pages.by_path.values():
            page.close()


def _make_handler(render: Callable[[str], bytes | None]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = render(self.path)
            self.send_response(500 if body is None else 200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(body or b"")

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    return Handler
