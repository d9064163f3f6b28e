"""The HTTP process: uvicorn and the API, with a socket to the engine. On SIGTERM it drains."""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Generator

import uvicorn
import uvloop
from fastapi import FastAPI

from millrace_fit.kv_budget import plan_large_text
from millrace_runtime import contract
from millrace_runtime.api.app import create_app
from millrace_runtime.api.connection.server import build_server_config
from millrace_runtime.api.engine_client import EngineClient
from millrace_runtime.api.replica_state import ReplicaState
from millrace_runtime.api.settings import GRAMMAR_MODULE, TEXT_MODULE, ApiSettings, ConnectionLimits
from millrace_runtime.api.workers.grammar_worker import GrammarWorker
from millrace_runtime.chat.errors import TokenizerError
from millrace_runtime.chat.model_files import (
    GENERATION_CONFIG,
    NO_DEFAULTS,
    AuthorDefaults,
    read_author_defaults,
)
from millrace_runtime.chat.parsers.registry import choose_reasoning_format, choose_tool_format
from millrace_runtime.chat.text_limits import TextLimits
from millrace_runtime.chat.tokenizer import Tokenizer
from millrace_runtime.chat.worker import TextWorker
from millrace_runtime.execution.host import count_text_threads
from millrace_runtime.replica.heartbeat import Heartbeat, Member, Phase
from millrace_runtime.replica.processes import Membership, join_replica
from millrace_runtime.replica.settings import ReplicaSettings

logger = logging.getLogger(__name__)
EXIT_TEXT_FAILED = 71  # EX_OSERR
_BEAT_SECONDS = 1.0
_START_POLL_SECONDS = 0.05
_SENT_POLL_SECONDS = 0.02
_FAREWELL_SECONDS = 1.0
"""How long a replica without requests keeps its clients' idle connections, once it is not ready any more. A
request that is already on its way then gets its 503. A close would reset it, and its sender could not know
that it had not begun. Gateways learn of a leaving pod within a tenth of that."""
_CLOSE_SECONDS = 2
"""How long uvicorn waits for connections whose answer is sent."""


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: ours drain first, and the server answers meanwhile."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Leave the process's signal handlers alone."""
        yield


def build_app(membership: Membership, sock: socket.socket) -> FastAPI:
    """Return the application over the engine's socket. Raises TokenizerError."""
    settings = membership.settings
    limits = TextLimits(
        memory_bytes=plan_large_text(membership.text_memory_bytes),
        num_threads=count_text_threads(os.environ),
    )
    tokenizer = Tokenizer.load(settings.model_path)
    templates = "".join(tokenizer.config.chat_templates.values())
    return create_app(
        EngineClient(sock),
        TextWorker(settings.model_path, limits, TEXT_MODULE),
        GrammarWorker(settings.model_path, GRAMMAR_MODULE),
        tokenizer,
        ApiSettings(
            served_name=settings.served_name,
            max_body_memory=settings.body_memory,
            body_seconds=settings.request_body_seconds,
            tool_format=_choose_tool_format(settings.tool_parser, templates),
            reasoning_format=_choose_reasoning_format(settings.reasoning_parser, templates),
            author_defaults=read_defaults(settings),
            sse_keep_alive_seconds=settings.sse_keep_alive_seconds,
            allowed_origins=settings.allowed_origins,
            service=settings.service,
            gateway_keys=settings.gateway_keys,
        ),
    )


def _choose_tool_format(flag: str, templates: str) -> str | None:
    if flag == "auto":
        return choose_tool_format(templates)
    return None if flag == "none" else flag


def _choose_reasoning_format(flag: str, templates: str) -> str | None:
    if flag == "auto":
        return choose_reasoning_format(templates)
    return None if flag == "none" else flag


def read_defaults(settings: ReplicaSettings) -> AuthorDefaults:
    """Return the sampling of the model's author, unless a flag says no. Raises TokenizerError."""
    if not settings.takes_author_defaults:
        if (settings.model_path / GENERATION_CONFIG).is_file():
            logger.info("ignoring %s: --generation-config is none", GENERATION_CONFIG)
        return NO_DEFAULTS
    defaults = read_author_defaults(settings.model_path)
    if defaults != NO_DEFAULTS:
        logger.info("the defaults of requests, from %s: %s", GENERATION_CONFIG, defaults)
    return defaults


def read_connection_limits(settings: ReplicaSettings) -> ConnectionLimits:
    """Return the limits that the flags set for connections."""
    return ConnectionLimits(
        head_seconds=settings.request_head_seconds,
        body_seconds=settings.request_body_seconds,
        keep_alive_seconds=settings.keep_alive_seconds,
        write_stall_seconds=settings.write_stall_seconds,
    )


async def serve(
    app: FastAPI,
    limits: ConnectionLimits,
    listener: socket.socket,
    heartbeat: Heartbeat,
    drain_seconds: float,
) -> str | None:
    """Answer requests on the listening socket until a SIGTERM and the end of the last stream.

    Return why this replica could no longer serve, or None if it could.
    """
    server = _Server(build_server_config(app, limits, _CLOSE_SECONDS))
    replica: ReplicaState = app.state.replica
    is_asked_to_stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, is_asked_to_stop.set)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    async with _beating(replica, heartbeat):
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        stopping = asyncio.create_task(_stop(server, replica, is_asked_to_stop, drain_seconds))
        await serving
        stopping.cancel()
        return replica.text.failure.result() if replica.text.failure.done() else None


async def _stop(
    server: uvicorn.Server, replica: ReplicaState, is_asked_to_stop: asyncio.Event, drain_seconds: float
) -> None:
    """Drain and end the server, once asked to stop or once the text worker has failed.

    Streams need no text worker, so they may finish even after its failure. The supervisor limits a drain that
    it asked for: it kills this process after --drain-seconds. It does not know about a failure, so this
    function limits the drain after one.
    """
    asked = asyncio.create_task(is_asked_to_stop.wait())
    await asyncio.wait((asked, replica.text.failure), return_when=asyncio.FIRST_COMPLETED)
    asked.cancel()
    replica.begin_drain()
    began = time.monotonic()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(None if is_asked_to_stop.is_set() else drain_seconds):
            await replica.wait_idle()
            await _wait_sent(server)
    await _wait_left(server, began + min(_FAREWELL_SECONDS, drain_seconds / 2))
    server.should_exit = True


async def _wait_sent(server: uvicorn.Server) -> None:
    """Wait until every buffered byte is sent to the clients."""
    connections = server.server_state.connections
    while any(connection.transport.get_write_buffer_size() for connection in connections):  # noqa: ASYNC110
        await asyncio.sleep(_SENT_POLL_SECONDS)


async def _wait_left(server: uvicorn.Server, deadline: float) -> None:
    """Wait until all clients have closed their connections, until `deadline` at the latest."""
    connections = server.server_state.connections
    while connections and time.monotonic() < deadline:  # noqa: ASYNC110  polled only while draining
        await asyncio.sleep(_SENT_POLL_SECONDS)


@contextlib.asynccontextmanager
async def _beating(replica: ReplicaState, heartbeat: Heartbeat) -> AsyncIterator[None]:
    replica.has_beaten = False
    task = asyncio.create_task(_beat(replica, heartbeat))
    try:
        yield
    finally:
        task.cancel()


async def _beat(replica: ReplicaState, heartbeat: Heartbeat) -> None:
    """Write heartbeats while the event loop runs, once the replica has been ready.

    Until then the first one counts: a start has a deadline for all of it.
    """
    while replica.why_not_ready is not None:  # noqa: ASYNC110  polled only while starting
        await asyncio.sleep(_START_POLL_SECONDS)
    while True:
        phase = Phase.STEPPING if replica.why_not_ready is None else Phase.REFUSING
        heartbeat.beat(Member.HTTP, phase, time.monotonic())
        replica.has_beaten = True
        await asyncio.sleep(_BEAT_SECONDS)


def main(argv: list[str]) -> int:
    """Run as the supervisor's child. Its descriptors are its socket, the heartbeat and the listener."""
    membership = join_replica(argv)
    logging.basicConfig(level=logging.INFO, format="millrace: %(message)s")
    socket_fd, heartbeat_fd, listener_fd = membership.fds
    heartbeat = Heartbeat(heartbeat_fd)
    try:
        app = build_app(membership, socket.socket(fileno=socket_fd))
    except TokenizerError as error:
        heartbeat.write_failure(str(error))
        return contract.EXIT_BAD_MODEL
    with (
        socket.socket(fileno=listener_fd) as listener,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        settings = membership.settings
        limits = read_connection_limits(settings)
        failure = runner.run(serve(app, limits, listener, heartbeat, settings.drain_seconds))
    if failure is not None:
        heartbeat.write_failure(failure)
        return contract.EXIT_BAD_MODEL if app.state.replica.text.is_model_at_fault else EXIT_TEXT_FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
