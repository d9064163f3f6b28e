"""The engine's process over a simulated executor: what it has recorded when it is Ready, and how it ends."""

import contextlib
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from millrace_runtime.execution import build
from millrace_runtime.protocol.encoding import FrameDecoder, encode_frame
from millrace_runtime.protocol.executor import Command, Record
from millrace_runtime.protocol.messages import EngineReady, FromEngine
from millrace_runtime.protocol.step import StepResult, StepSize
from millrace_runtime.replica import engine_process
from millrace_runtime.replica.flags import parse_settings
from millrace_runtime.replica.heartbeat import Heartbeat
from millrace_runtime.replica.lifecycle import EXIT_ENGINE_FAILED, EXIT_PEER_GONE
from millrace_runtime.replica.processes import Membership
from tests.runtime.engine.engine_driver import SimulatedExecutor, limits, next_token, request

SIZES = tuple(map(StepSize, (1, 2, 4)))
CUDA_ERROR = (
    "CUDA error: an illegal memory access was encountered\n"
    "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below "
    "might be incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
)
"""As torch writes it."""
FAILURE = "the engine failed: RuntimeError: CUDA error: an illegal memory access was encountered"


class Engine(SimulatedExecutor):
    """An executor with its process: it fails once it serves, or while it records."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
        bounds = msgspec.structs.replace(limits(depth=2, length=200, num_blocks=400), recordable=SIZES)
        super().__init__(bounds, next_token)
        self.ours, theirs = socket.socketpair()
        self.heartbeat = Heartbeat.create(time.monotonic())
        self.recorded_when_ready: list[StepSize] | None = None
        self.fails_at: type[Record | StepResult] | None = None
        settings = parse_settings(["--model", str(path), "--device", "cpu"])
        membership = Membership(settings, 1 << 20, (theirs.detach(), self.heartbeat.fd))
        monkeypatch.setattr(build, "build_executor", lambda *_: self)
        monkeypatch.setattr(engine_process, "join_replica", lambda _: membership)

    def check(self) -> None:
        """Each turn of the loop begins so."""
        if self.recorded_when_ready is None:
            self.recorded_when_ready = list(self.recorded)
        if len(self.recorded) == len(SIZES):
            self.ours.shutdown(socket.SHUT_WR)

    def control(self, command: Command) -> None:
        if self.fails_at is Record:
            raise RuntimeError(CUDA_ERROR)
        super().control(command)

    def collect(self) -> StepResult:
        if self.fails_at is StepResult and self.recorded_when_ready is not None:
            raise RuntimeError(CUDA_ERROR)
        return super().collect()

    def receive(self) -> list[FromEngine]:
        """Return what the process has sent until it ended."""
        decoder: FrameDecoder[FromEngine] = FrameDecoder(FromEngine)  # type: ignore[arg-type]
        messages: list[FromEngine] = []
        while data := self.ours.recv(1 << 16):
            messages += decoder.feed(data)
        return messages


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Engine]:
    engine = Engine(monkeypatch, tmp_path)
    with engine.ours, contextlib.closing(engine.heartbeat):
        yield engine


def test_it_is_ready_with_the_sizes_of_the_first_requests_and_records_the_others_later(
    engine: Engine,
) -> None:
    assert engine_process.main([]) == EXIT_PEER_GONE
    assert isinstance(engine.receive()[0], EngineReady)
    assert engine.recorded_when_ready == [StepSize(4), StepSize(1)]
    assert engine.recorded == [StepSize(4), StepSize(1), StepSize(2)]


def test_an_error_of_the_device_ends_it_with_the_errors_first_line(
    engine: Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    engine.fails_at = StepResult
    engine.ours.sendall(encode_frame(request(1, [1, 2, 3])))
    assert engine_process.main([]) == EXIT_ENGINE_FAILED
    assert engine.heartbeat.read_failure() == FAILURE
    assert "Traceback" in capsys.readouterr().err


def test_an_error_while_it_records_before_it_is_ready_ends_it_too(engine: Engine) -> None:
    engine.fails_at = Record
    assert engine_process.main([]) == EXIT_ENGINE_FAILED
    assert engine.heartbeat.read_failure() == FAILURE
    assert engine.receive() == []
