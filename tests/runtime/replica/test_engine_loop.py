"""The loop over a real socket pair, with the simulated executor."""

import socket
import threading
from collections.abc import Iterator

import pytest

from millrace_runtime.engine.scheduler import Scheduler
from millrace_runtime.protocol.framing import FrameDecoder, encode_frame
from millrace_runtime.protocol.messages import Abort, FromEngine, StepOutputs
from millrace_runtime.replica.engine_channel import EngineChannel
from millrace_runtime.replica.engine_loop import EngineLoop
from millrace_runtime.replica.engine_process import try_step
from millrace_runtime.replica.errors import PeerGone
from tests.runtime.engine.engine_driver import SimulatedExecutor, expected, limits, next_token, request


class Peer:
    """The HTTP process's end, and the engine's thread."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        bounds = limits(depth=2)
        self.socket, self.beats = ours, 0
        self.socket.settimeout(10)
        self._decoder: FrameDecoder[FromEngine] = FrameDecoder(FromEngine)  # type: ignore[arg-type]
        self._theirs = theirs
        scheduler, executor = Scheduler(bounds, 8), SimulatedExecutor(bounds, next_token)
        try_step(scheduler, executor)
        self._loop = EngineLoop(EngineChannel(theirs), scheduler, executor, self._beat)
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _beat(self) -> None:
        self.beats += 1

    def _run(self) -> None:
        with self._theirs, pytest.raises(PeerGone):
            self._loop.run()

    def send(self, *messages: object) -> None:
        self.socket.sendall(b"".join(map(encode_frame, messages)))

    def receive(self) -> Iterator[StepOutputs]:
        while True:
            for message in self._decoder.feed(self.socket.recv(1 << 16)):
                assert isinstance(message, StepOutputs)
                yield message


@pytest.fixture
def peer() -> Iterator[Peer]:
    peer = Peer()
    yield peer
    peer.socket.close()
    peer.thread.join(10)
    assert not peer.thread.is_alive()


def test_tokens_come_step_by_step_with_timing_and_stats(peer: Peer) -> None:
    wanted = request(1, range(12), max_tokens=4)
    peer.send(wanted)
    tokens: list[int] = []
    for message in peer.receive():
        assert message.timing is None or message.timing.num_tokens <= 8
        for output in message.outputs:
            tokens += output.tokens
        if message.outputs and message.outputs[0].finish_reason:
            assert message.outputs[0].finish_reason == "length"
            break
    assert tokens == expected(wanted, 100)[0]
    assert peer.beats > 0


def test_a_refused_sequence_is_answered_and_its_neighbour_served(peer: Peer) -> None:
    peer.send(request(1, [1] * 100), request(2, [1, 2], max_tokens=1))
    ends = {}
    for message in peer.receive():
        ends |= {output.sequence_id: output for output in message.outputs if output.finish_reason}
        if len(ends) == 2:
            break
    assert ends[1].finish_reason == "error"
    assert "100 tokens and this model takes 100" in str(ends[1].error)
    assert ends[2].finish_reason == "length"


def test_an_abort_frees_the_blocks_and_the_gauges_hear_of_it(peer: Peer) -> None:
    peer.send(request(1, [1], max_tokens=99), request(2, [2], max_tokens=99))
    messages = peer.receive()
    next(message for message in messages if message.stats.num_running == 2)
    peer.send(Abort(1), Abort(2), Abort(3))
    last = next(message for message in messages if message.stats.num_running == 0)
    assert last.stats.num_free_blocks == last.stats.num_blocks
