"""The grammar worker as the HTTP process sees it. A grammar starts it if none runs."""

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from millrace_runtime.api.errors import UnavailableError
from millrace_runtime.child_process import spawn
from millrace_runtime.grammar.errors import GrammarError
from millrace_runtime.grammar.messages import (
    PROOF_SECONDS,
    Disproven,
    FromGrammarWorker,
    Prove,
    Withdraw,
)
from millrace_runtime.grammar.source import GrammarSource
from millrace_runtime.protocol.encoding import FrameDecoder, FrameError, encode_frame
from millrace_runtime.protocol.messages import Grammar

logger = logging.getLogger(__name__)
_READ_BYTES = 1 << 20
_RETRY_SECONDS = 5
_ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
"""It forks, so it may have one thread only."""


class _Process:
    """A living process, and the awaited answers."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._process, self._reader, self._writer = process, reader, writer
        self._numbers = itertools.count()
        self._answers: dict[int, asyncio.Future[FromGrammarWorker]] = {}
        self.has_ended = False
        """Whether it answers nothing any more."""
        self._listening = asyncio.create_task(self._listen())

    @classmethod
    async def start(cls, model_path: Path, module: str, seconds: Sequence[float]) -> Self:
        """Start a process, which loads meanwhile. Raises UnavailableError."""
        try:
            child = await spawn(module, model_path, seconds, _ENVIRONMENT)
        except OSError as error:
            raise UnavailableError(
                f"the grammar worker can't be started: {error}", retry_after=_RETRY_SECONDS
            ) from error
        return cls(child.process, *await asyncio.open_connection(sock=child.sock))

    async def ask(self, source: GrammarSource) -> FromGrammarWorker:
        """Return the answer for a grammar. A cancelled caller withdraws it. Raises UnavailableError."""
        number = next(self._numbers)
        answer: asyncio.Future[FromGrammarWorker] = asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        self._writer.write(encode_frame(Prove(number, source.kind, source.text, source.before)))
        try:
            return await answer
        except asyncio.CancelledError:
            self._writer.write(encode_frame(Withdraw(number)))
            raise
        finally:
            self._answers.pop(number, None)

    async def kill(self) -> None:
        """End the process, and fail the awaited answers."""
        self._listening.cancel()
        await asyncio.gather(self._listening, return_exceptions=True)

    async def _listen(self) -> None:
        """Give each answer to its caller until the process ends. Then end it, and fail the other callers."""
        decoder: FrameDecoder[FromGrammarWorker] = FrameDecoder(FromGrammarWorker)  # type: ignore[arg-type]
        try:
            with contextlib.suppress(OSError, FrameError):
                while data := await self._reader.read(_READ_BYTES):
                    for message in decoder.feed(data):
                        answer = self._answers.get(message.number)
                        if answer is not None and not answer.done():
                            answer.set_result(message)
            logger.warning("the grammar worker ended: the next grammar starts another")
        finally:
            self.has_ended = True  # before the wait for the process, in which a grammar may come
            self._writer.close()
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            for answer in self._answers.values():
                if not answer.done():
                    answer.set_exception(
                        UnavailableError("the grammar worker ended", retry_after=_RETRY_SECONDS)
                    )
            await self._process.wait()


class GrammarWorker:
    """Proves grammars in a process of its own: none delays another request."""

    def __init__(self, model_path: Path, module: str, seconds: Sequence[float] = PROOF_SECONDS) -> None:
        """`module` is what the process runs; `seconds` are the limits of its proofs."""
        self._model_path, self._module, self._seconds = model_path, module, seconds
        self._starting: asyncio.Task[_Process] | None = None

    async def prove(self, source: GrammarSource) -> Grammar:
        """Return a grammar as the engine takes it. Raises GrammarError and UnavailableError."""
        process = await self._open()
        answer = await process.ask(source)
        if isinstance(answer, Disproven):
            raise GrammarError(answer.why)
        return answer.grammar

    async def close(self) -> None:
        """End the process. Awaited proofs fail."""
        if self._starting is not None:
            [started] = await asyncio.gather(self._starting, return_exceptions=True)
            if isinstance(started, _Process):
                await started.kill()

    async def _open(self) -> _Process:
        """Return the living process, or start one. All callers wait for the same start."""
        starting = self._starting
        if starting is None or (starting.done() and (starting.exception() or starting.result().has_ended)):
            starting = self._starting = asyncio.create_task(
                _Process.start(self._model_path, self._module, self._seconds)
            )
        return await asyncio.shield(starting)
