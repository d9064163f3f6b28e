"""The engine's process: loads the model, tries some steps, then runs the loop."""

import os
import socket
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NoReturn

from millrace_runtime import contract
from millrace_runtime.chat.errors import TokenizerError
from millrace_runtime.engine.scheduler import Scheduler
from millrace_runtime.execution.errors import ModelError, WorkerError, describe
from millrace_runtime.execution.parallel.executor import start_workers
from millrace_runtime.execution.settings import ExecutionSettings
from millrace_runtime.grammar.errors import GrammarError
from millrace_runtime.process import paused_collection, say
from millrace_runtime.protocol.executor import Executor
from millrace_runtime.protocol.messages import EngineReady, Grammar
from millrace_runtime.replica.engine_loop import EngineChannel, EngineLoop
from millrace_runtime.replica.errors import PeerGone
from millrace_runtime.replica.grammar_compiler import Root
from millrace_runtime.replica.heartbeat import Heartbeat, Member, Phase
from millrace_runtime.replica.lifecycle import EXIT_ENGINE_FAILED, EXIT_PEER_GONE
from millrace_runtime.replica.processes import Membership, join_replica
from millrace_runtime.replica.recordings import Recordings
from millrace_runtime.replica.trial import try_steps


class _PhaseClock:
    """Measures the startup's phases."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._since = time.monotonic()

    def end(self, phase: str) -> None:
        """Record the time since the end of the phase before."""
        now = time.monotonic()
        self.seconds[phase], self._since = now - self._since, now


def serve(membership: Membership, channel: EngineChannel, heartbeat: Heartbeat) -> NoReturn:
    """Load the model, send EngineReady, and run until the HTTP process is gone (PeerGone).

    Raises ModelError for a folder without a supported model.
    """
    clock = _PhaseClock()
    executor = _load_executor(membership, clock)
    heartbeat.beat(Member.ENGINE, Phase.WARMING, time.monotonic())
    compile_grammar = _open_grammars(membership.settings.model_path, executor.limits.vocabulary_size)
    scheduler = Scheduler(executor.limits, membership.settings.target_inter_token_seconds)
    recordings = Recordings(executor.limits.recordable)
    trial_steps = try_steps(scheduler, executor, recordings, sum(clock.seconds.values()))
    clock.end("warmup")
    limits = executor.limits

    def beat() -> None:
        heartbeat.beat(Member.ENGINE, Phase.STEPPING, time.monotonic())

    beat()
    channel.send(
        EngineReady(
            max_model_length=scheduler.max_model_length,
            num_blocks=max(group.num_blocks for group in limits.groups),
            kv_tokens=limits.kv_tokens,
            block_size=limits.block_size,
            max_sequences=limits.num_slots,
            vocabulary_size=limits.vocabulary_size,
            placement=executor.placement,
            startup_seconds=clock.seconds,
            trial_steps=trial_steps,
        )
    )
    EngineLoop(channel, scheduler, executor, compile_grammar, beat, recordings=recordings).run()


def _open_grammars(model_path: Path, vocabulary_size: int) -> Callable[[Grammar], Root]:
    """Return the function that compiles grammars.

    It loads the vocabulary now. For 128,000 tokens that takes a second of CPU in which no other thread runs:
    if the first request had to load it, every stream would stop.
    """
    from millrace_runtime.chat.tokenizer import Tokenizer  # noqa: PLC0415  a phase that we measure
    from millrace_runtime.grammar.matcher import Matcher, Vocabulary  # noqa: PLC0415

    try:
        vocabulary = Vocabulary(Tokenizer.load(model_path), vocabulary_size)
    except (GrammarError, TokenizerError) as error:
        say(f"structured answers and forced calls are refused: {error}")
        return partial(_refuse_grammar, GrammarError(str(error)))
    return partial(Matcher.compile, vocabulary)


def _refuse_grammar(error: GrammarError, _: Grammar) -> NoReturn:
    raise error


def _load_executor(membership: Membership, clock: _PhaseClock) -> Executor:
    settings, count = _execution_settings(membership), membership.settings.tensor_parallel
    if count > 1:
        clock.end("imports")  # the workers import torch, while they load
        executor: Executor = start_workers(settings, count, say)
    else:
        # Imported here: torch takes seconds, and is a phase of its own.
        with paused_collection():
            from millrace_runtime.execution.build import build_executor  # noqa: PLC0415

        clock.end("imports")
        executor = build_executor(settings, say)
    clock.end("weights")
    return executor


def _execution_settings(membership: Membership) -> ExecutionSettings:
    settings = membership.settings
    return ExecutionSettings(
        model_path=settings.model_path,
        device=settings.device,
        dtype=settings.dtype,
        weights=settings.weights,
        kv_cache=settings.kv_cache,
        max_model_length=settings.max_model_length,
        max_sequences=settings.max_sequences,
        max_batched_tokens=settings.max_batched_tokens,
        text_memory_bytes=membership.text_memory_bytes,
        kv_cache_bytes=settings.kv_cache_bytes,
        kernels=settings.kernels,
        speculative_tokens=settings.speculative_tokens,
    )


def main(argv: list[str]) -> int:
    """Run as the supervisor's child. Its descriptors are its socket and the heartbeat."""
    membership = join_replica(argv)
    socket_fd, heartbeat_fd = membership.fds
    heartbeat = Heartbeat(heartbeat_fd)
    with socket.socket(fileno=socket_fd) as sock:
        try:
            serve(membership, EngineChannel(sock), heartbeat)
        except PeerGone:
            return EXIT_PEER_GONE
        except Exception as error:  # noqa: BLE001  the process reports any failure and ends
            return _fail(error, heartbeat)


def _fail(error: Exception, heartbeat: Heartbeat) -> int:
    """Report why the engine ends, and return its exit status.

    A bad model and a lost worker need no traceback.
    """
    if isinstance(error, ModelError | WorkerError):
        heartbeat.write_failure(str(error))
        return contract.EXIT_BAD_MODEL if isinstance(error, ModelError) else EXIT_ENGINE_FAILED
    heartbeat.write_failure(f"the engine failed: {describe(error)}")
    traceback.print_exc()
    return EXIT_ENGINE_FAILED


if __name__ == "__main__":
    status = main(sys.argv[1:])
    sys.stderr.flush()
    # Not sys.exit: the teardown of torch and CUDA can hang, and this process has nothing to save.
    os._exit(status)
