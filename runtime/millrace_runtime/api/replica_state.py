"""The state that all requests of a replica share: engine, text worker, admission, metrics, readiness."""

import asyncio
import contextlib
from collections.abc import Iterator
from typing import NamedTuple

from millrace_runtime.api.admission import Admission
from millrace_runtime.api.engine_client import EngineClient
from millrace_runtime.api.errors import ModelNotFoundError, UnavailableError
from millrace_runtime.api.metrics import ReplicaMetrics
from millrace_runtime.api.settings import ApiSettings
from millrace_runtime.api.workers.grammar_worker import GrammarWorker
from millrace_runtime.chat.errors import NoTextWorkerError
from millrace_runtime.chat.tokenizer import Tokenizer
from millrace_runtime.chat.worker import TextWorker
from millrace_runtime.protocol.messages import EngineReady, StepTiming

_RETRY_SECONDS = 5
_POLL_SECONDS = 0.02


class Load(NamedTuple):
    """The replica's sequences and memory."""

    num_waiting: int
    """Sequences that the engine does not compute yet."""
    num_running: int
    max_sequences: int
    """The most sequences that the engine computes at the same time; 0 while there is no engine."""
    kv_usage: float
    """The share of the KV blocks in use, 0 to 1."""

    def encode(self) -> bytes:
        """Return the value of HEADER_LOAD."""
        return b"%d %d %d %.3f" % self


class ReplicaState:
    """The replica as the HTTP process sees it."""

    def __init__(
        self,
        engine: EngineClient,
        text: TextWorker,
        grammars: GrammarWorker,
        tokenizer: Tokenizer,
        settings: ApiSettings,
    ) -> None:
        self.engine = engine
        self.text = text
        self.grammars = grammars
        self.tokenizer = tokenizer
        self.settings = settings
        self.admission = Admission(
            settings.max_requests,
            settings.max_queued_tokens,
            settings.max_body_memory,
            settings.max_event_bytes,
        )
        self.metrics = ReplicaMetrics(engine, settings.served_name)
        self.is_draining = False
        self.has_beaten = True
        """Whether the supervisor, if there is one, knows that this process is ready."""
        self.num_requests = 0
        """Requests in flight."""
        self._starting: list[asyncio.Task[None]] = []
        engine.observe_timing(self._observe_step)

    def start(self) -> None:
        """Begin to wait for the engine and the text worker. `why_not_ready` names the missing one."""
        self._starting = [asyncio.create_task(self._start_engine()), asyncio.create_task(self._start_text())]

    async def close(self) -> None:
        """Stop waiting, and close the engine's socket and both workers."""
        for task in self._starting:
            task.cancel()
        await asyncio.gather(*self._starting, return_exceptions=True)
        await self.engine.close()
        await self.text.close()
        await self.grammars.close()

    def begin_drain(self) -> None:
        """Refuse new requests from now on. Requests in flight continue."""
        self.is_draining = True

    async def wait_started(self, seconds: float) -> None:
        """Wait while the engine or the text worker starts, for up to `seconds`.

        The supervisor knows of the start before this ends: the kubelet asks it right after.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._is_starting:  # noqa: ASYNC110  polled only while starting
                    await asyncio.sleep(_POLL_SECONDS)

    async def wait_idle(self) -> None:
        """Wait until no request is in flight."""
        while self.num_requests:  # noqa: ASYNC110  polled only while draining
            await asyncio.sleep(_POLL_SECONDS)

    @property
    def why_not_ready(self) -> str | None:
        """Why the replica refuses requests; None while it accepts them."""
        if self.is_draining:
            return "this replica is draining"
        if self.engine.is_gone:
            return "the engine of this replica ended"
        if self.engine.ready is None:
            return "the engine is still loading"
        return None if self.text.is_ready else "the tokenizer is still loading"

    @property
    def _is_starting(self) -> bool:
        is_ready = self.why_not_ready is None and self.has_beaten
        return not (is_ready or self.is_draining or self.engine.is_gone)

    def require_ready(self) -> EngineReady:
        """Return the engine's limits. Raises UnavailableError while the replica refuses requests."""
        why = self.why_not_ready
        if why is not None or self.engine.ready is None:
            raise UnavailableError(why or "not ready", retry_after=_RETRY_SECONDS)
        return self.engine.ready

    def require_model(self, model: str | None) -> None:
        """Raise ModelNotFoundError for a name that is not the served one. None asks for any."""
        served = self.settings.served_name
        if model is not None and model != served:
            raise ModelNotFoundError(
                f"the model `{model}` is not served here: use `{served}`",
                param="model",
                code="model_not_found",
            )

    @contextlib.contextmanager
    def open_request(self) -> Iterator[EngineReady]:
        """Count a request as in flight, and yield the engine's limits. Raises UnavailableError."""
        ready = self.require_ready()
        self.num_requests += 1
        try:
            yield ready
        finally:
            self.num_requests -= 1

    def read_load(self) -> Load:
        """Return the present load."""
        ready = self.engine.ready
        return Load(
            num_waiting=self.metrics.num_waiting,
            num_running=self.metrics.num_running,
            max_sequences=ready.max_sequences if ready else 0,
            kv_usage=self.metrics.kv_usage,
        )

    async def _start_engine(self) -> None:
        with contextlib.suppress(UnavailableError):  # `is_gone` shows it
            await self.engine.start()

    async def _start_text(self) -> None:
        with contextlib.suppress(NoTextWorkerError):  # `text.failure` has the reason
            await self.text.start()

    def _observe_step(self, timing: StepTiming) -> None:
        self.admission.observe_step(timing.num_tokens, timing.seconds)
