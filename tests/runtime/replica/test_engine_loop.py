"""The loop over a real socket pair, with the simulated executor."""

import contextlib
import math
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from millrace_runtime.engine.scheduler import Scheduler
from millrace_runtime.engine.token_budget import StepWork
from millrace_runtime.execution.errors import ModelError
from millrace_runtime.protocol.encoding import FrameDecoder, encode_frame
from millrace_runtime.protocol.executor import Sleep
from millrace_runtime.protocol.messages import Abort, Begun, FromEngine, Generate, StepOutputs
from millrace_runtime.replica.engine_loop import STEP_POLL_SECONDS, EngineChannel, EngineLoop, StepClock
from millrace_runtime.replica.errors import PeerGone
from millrace_runtime.replica.heartbeat import Deadlines, Heartbeat, Member, Phase
from millrace_runtime.replica.recordings import Recordings
from millrace_runtime.replica.trial import try_steps
from tests.runtime.engine.engine_driver import (
    SimulatedExecutor,
    build_grammar,
    expected,
    limits,
    next_token,
    request,
)


class Peer:
    """The HTTP process's end, and the engine's thread."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        bounds = limits(depth=2, budget=8)
        self.socket, self.beats = ours, 0
        self.socket.settimeout(10)
        self._decoder: FrameDecoder[FromEngine] = FrameDecoder(FromEngine)  # type: ignore[arg-type]
        self._theirs = theirs
        scheduler, self.executor = Scheduler(bounds), SimulatedExecutor(bounds, next_token)
        try_steps(scheduler, self.executor, Recordings(()))
        self._loop = EngineLoop(EngineChannel(theirs), scheduler, self.executor, build_grammar, self._beat)
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


def test_the_begin_of_a_sequence_is_told_once_and_before_its_first_token(peer: Peer) -> None:
    """The trial's sequence is none of the clients'."""
    peer.send(request(1, range(12), max_tokens=4, others=(2, 3)))
    begun: list[int] = []
    ended = set()
    for message in peer.receive():
        begun += [one.sequence_id for one in message.begun]
        assert all(output.sequence_id in begun for output in message.outputs)
        ended |= {output.sequence_id for output in message.outputs if output.finish_reason}
        if len(ended) == 3:
            break
    assert begun == [1, 2, 3]


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


def test_a_grammar_is_compiled_beside_the_loop_and_a_wrong_one_fails_alone(peer: Peer) -> None:
    peer.send(
        request(1, [1], max_tokens=9, grammar="3", others=[2]),
        request(3, [1], max_tokens=9, grammar="wrong"),
        request(4, [1], max_tokens=9, grammar="9"),
        Abort(2),
        request(5, [1], max_tokens=2),
    )
    ends, texts = {}, {number: [] for number in range(6)}
    for message in peer.receive():
        for output in message.outputs:
            texts[output.sequence_id] += output.tokens
        ends |= {output.sequence_id: output for output in message.outputs if output.finish_reason}
        if ends.keys() >= {1, 3, 4, 5}:
            break
    assert {number: output.finish_reason for number, output in ends.items() if number != 2} == {
        1: "stop", 3: "error", 4: "stop", 5: "length",
    }  # fmt: skip
    assert ends[3].error == "the grammar can't be used: no number"
    assert texts[1] == expected(request(1, [1], max_tokens=3), 100)[0]


def test_an_abort_frees_the_blocks_and_the_gauges_hear_of_it(peer: Peer) -> None:
    peer.send(request(1, [1], max_tokens=99), request(2, [2], max_tokens=99))
    messages = peer.receive()
    next(message for message in messages if message.stats.num_running == 2)
    peer.send(Abort(1), Abort(2), Abort(3))
    last = next(message for message in messages if message.stats.num_running == 0)
    assert last.stats.num_free_blocks == last.stats.num_blocks


def test_an_engine_at_rest_holds_no_sequence_counts_no_step_and_sleeps(peer: Peer) -> None:
    messages = peer.receive()
    for number in (1, 2):  # the rest after the first is told, if at all, before the second's tokens
        peer.send(request(number, [1, 2], max_tokens=3))
        for message in messages:
            assert message.timing is None or message.timing.num_sequences
            if message.outputs and message.outputs[0].finish_reason:
                break
    time.sleep(0.1)
    beats = peer.beats
    time.sleep(0.3)
    assert peer.beats - beats <= 1
    peer.executor.control(Sleep())  # which needs every slot empty


@pytest.mark.parametrize("num_good", [0, 1])
def test_a_model_that_fails_its_trial_serves_nothing(num_good: int) -> None:
    bounds = limits(depth=2)
    draws = iter([1] * num_good)
    executor = SimulatedExecutor(bounds, lambda _: next(draws, None))
    with pytest.raises(ModelError, match=r"trial step.*logits are not finite.*download the model again"):
        try_steps(Scheduler(bounds), executor, Recordings(()))


class SlowExecutor(SimulatedExecutor):
    """Its first step takes `seconds` of a clock of its own, and comes forward until it stalls."""

    def __init__(self, seconds: float, stalls_after: float = math.inf) -> None:
        super().__init__(limits(budget=8), next_token)
        self.now = 0.0
        self._seconds, self._stalls_after = seconds, stalls_after
        self.watch: Callable[[float], None] = lambda _: None

    def wait(self, timeout_seconds: float) -> bool:
        self.now += timeout_seconds
        self.progress += self.now <= self._stalls_after
        self.watch(self.now)
        return self.now >= self._seconds


class Turn:
    """One turn of the loop around a slow step, as the supervisor and the HTTP process see it."""

    def __init__(self, executor: SlowExecutor) -> None:
        self.heartbeat = Heartbeat.create(0.0)
        self.stalls: list[str | None] = []
        self.sent: list[StepOutputs] = []
        self._executor = executor
        self._decoder: FrameDecoder[FromEngine] = FrameDecoder(FromEngine)  # type: ignore[arg-type]

    def run(self, *arrivals: tuple[float, Generate]) -> None:
        """`arrivals`: further requests, each with its time."""
        ours, theirs = socket.socketpair()
        waiting = list(arrivals)

        def watch(now: float) -> None:
            self.stalls.append(self.heartbeat.find_stall(Deadlines(startup=1800, step=30), now))
            self._listen(ours)
            while waiting and waiting[0][0] <= now:
                ours.sendall(encode_frame(waiting.pop(0)[1]))

        self._executor.watch = watch
        scheduler = Scheduler(self._executor.limits)
        with ours, theirs:
            ours.setblocking(False)
            ours.sendall(encode_frame(request(1, [1, 2], max_tokens=1)))
            self._beat()
            loop = EngineLoop(EngineChannel(theirs), scheduler, self._executor, build_grammar, self._beat)
            loop.turn()
            loop._send()  # as the next turn does, once it has submitted a step or before it rests
            self._listen(ours)

    def _beat(self) -> None:
        for member in Member:
            self.heartbeat.beat(member, Phase.STEPPING, self._executor.now)

    def _listen(self, sock: socket.socket) -> None:
        with contextlib.suppress(BlockingIOError):
            for message in self._decoder.feed(sock.recv(1 << 16)):
                assert isinstance(message, StepOutputs)
                self.sent.append(message)


def test_a_step_that_comes_forward_may_take_longer_than_the_deadline() -> None:
    turn = Turn(SlowExecutor(seconds=90))
    turn.run()
    assert len(turn.stalls) == 90 / STEP_POLL_SECONDS
    assert set(turn.stalls) == {None}
    assert turn.sent[-1].outputs[0].finish_reason == "length"


def test_a_step_that_stalls_is_found_within_the_deadline() -> None:
    turn = Turn(SlowExecutor(seconds=90, stalls_after=20))
    turn.run()
    found = [at for at, stall in enumerate(turn.stalls, 1) if stall is not None]
    assert 49 < found[0] * STEP_POLL_SECONDS < 51
    assert "engine: no progress for 30 s while stepping" in str(turn.stalls[found[0] - 1])


def test_who_waits_and_runs_is_told_before_and_during_a_long_step() -> None:
    turn = Turn(SlowExecutor(seconds=60))
    turn.run((10.0, request(2, [3, 4])), (20.0, request(3, [1] * 100)))
    states = [(message.stats.num_waiting, message.stats.num_running) for message in turn.sent]
    assert states == [(0, 0), (1, 0), (0, 1), (1, 1), (1, 1), (1, 0)]
    assert [message.timing is None for message in turn.sent] == [True] * 5 + [False]
    assert [message.begun for message in turn.sent] == [[], [], [Begun(1, 0)], [], [], []]
    assert turn.sent[4].outputs[0].finish_reason == "error"  # refused at once, too


def test_a_step_lasts_from_the_one_before_while_there_is_work() -> None:
    """What lies between two steps is part of the second: nobody computes meanwhile. Rest is part of none."""
    now = [0.0]
    clock = StepClock(lambda: now[0])

    def pass_by(seconds: float) -> None:
        now[0] += seconds

    pass_by(5.0)
    clock.begin()
    pass_by(0.1)
    clock.begin()  # the next one, while the first runs
    assert clock.end(is_more_to_do=True) == pytest.approx(0.1)
    pass_by(0.3)
    assert clock.end(is_more_to_do=True) == pytest.approx(0.3)
    pass_by(0.05)  # stopped, and then the next step
    clock.begin()
    pass_by(0.1)
    assert clock.end(is_more_to_do=False) == pytest.approx(0.15)
    pass_by(60.0)
    clock.begin()
    pass_by(0.1)
    assert clock.end(is_more_to_do=False) == pytest.approx(0.1)


def test_the_steps_of_a_busy_engine_take_all_of_its_time(peer: Peer) -> None:
    began = time.perf_counter()
    peer.send(request(0, [1, 2, 3, 4], max_tokens=64))
    seconds = []
    for message in peer.receive():
        if message.timing is not None:
            seconds.append(message.timing.seconds)
        if any(output.finish_reason for output in message.outputs):
            break
    assert 0 < sum(seconds) <= time.perf_counter() - began
    assert sum(seconds) != pytest.approx(0.001 * len(seconds))  # what the simulated device says of itself


def test_the_scheduler_learns_the_time_of_each_step() -> None:
    learnt: list[tuple[StepWork, float]] = []

    class Learner(Scheduler):
        def observe(self, work: StepWork, seconds: float) -> None:
            learnt.append((work, seconds))

    executor = SimulatedExecutor(limits(budget=8), next_token)
    scheduler = Learner(executor.limits)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        loop = EngineLoop(EngineChannel(theirs), scheduler, executor, build_grammar, lambda: None)
        ours.sendall(encode_frame(request(1, range(12), max_tokens=2)))
        loop.turn()
        while scheduler.has_work:
            loop.turn()
    assert [work for work, _ in learnt[:3]] == [StepWork(0, 0, 8, 36), StepWork(0, 0, 4, 42), StepWork(1, 13)]
    assert all(seconds > 0 for _, seconds in learnt)
