"""When decode steps are recorded: by a sequence of what an engine sees, and by its loop."""

import socket
from collections.abc import Iterator, Sequence

import msgspec
import pytest

from millrace_runtime.engine.scheduler import Scheduler
from millrace_runtime.protocol.encoding import FrameDecoder, encode_frame
from millrace_runtime.protocol.messages import FromEngine, StepOutputs
from millrace_runtime.protocol.step import StepSize
from millrace_runtime.replica.engine_loop import EngineChannel, EngineLoop
from millrace_runtime.replica.recordings import BUSY_SECONDS, REST_SECONDS, Recordings
from tests.runtime.engine.engine_driver import SimulatedExecutor, build_grammar, limits, next_token, request

SIZES = tuple(map(StepSize, (1, 2, 4, 8)))
MIXED = tuple(StepSize(size, is_mixed=True) for size in (4, 16))


def test_an_idle_engine_records_all_from_the_largest_on() -> None:
    recordings, recorded = Recordings(SIZES), []
    for turn in range(20):
        now = turn * REST_SECONDS / 2
        if (size := recordings.choose_at_rest(now)) is not None:
            recorded.append((turn, size.num_tokens))
            recordings.note(size, now)
    assert recorded == [(0, 8), (2, 4), (4, 2), (6, 1)]
    assert recordings.is_complete


def test_a_busy_engine_records_what_it_needs_and_seldom() -> None:
    recordings = Recordings(SIZES)
    one, three, four, eight, nine = (StepSize(number) for number in (1, 3, 4, 8, 9))
    assert recordings.choose_at_work([three], 0.0) == eight, "the others use its memory"
    recordings.note(eight, 0.0)
    assert recordings.choose_at_work([three], BUSY_SECONDS - 0.1) is None
    assert recordings.choose_at_work([three], BUSY_SECONDS) == four
    recordings.note(four, BUSY_SECONDS)
    assert recordings.choose_at_work([three], 100.0) is None, "it is there already"
    assert recordings.choose_at_work([one], 100.0) == one
    assert recordings.choose_at_work([nine], 100.0) is None, "more rows than any size has"
    assert recordings.choose_at_work([], 100.0) is None, "prompts come first"
    assert recordings.choose_at_rest(100.0) == StepSize(2)


def test_decoding_comes_before_prompts_and_the_largest_of_both_kinds_first() -> None:
    recordings = Recordings(sorted((*SIZES, StepSize(32), *MIXED)))
    steps = [StepSize(3), StepSize(5, is_mixed=True)]
    for now, size in ((0.0, StepSize(32)), (BUSY_SECONDS, StepSize(4)), (2 * BUSY_SECONDS, MIXED[1])):
        assert recordings.choose_at_work(steps, now) == size
        recordings.note(size, now)
    assert recordings.choose_at_work(steps, 100.0) is None
    assert recordings.choose_at_work([StepSize(17, is_mixed=True)], 100.0) is None, "a large prompt"
    left = []
    while (size := recordings.choose_at_rest(1000.0 * (len(left) + 1))) is not None:
        left.append(size)
        recordings.note(size, 1000.0 * len(left))
    assert left == [StepSize(8), MIXED[0], StepSize(2), StepSize(1)]


def test_after_the_trial_a_busy_engine_begins_with_the_largest_too() -> None:
    recordings, now = Recordings(SIZES), BUSY_SECONDS
    for size in (StepSize(2), StepSize(1)):
        recordings.note(size, 0.0)
    assert recordings.choose_at_work([StepSize(1)], now) is None, "it is there already"
    assert recordings.choose_at_work([StepSize(3)], now) == StepSize(8)
    assert recordings.choose_at_rest(now) == StepSize(8)


def test_an_executor_that_records_nothing_is_never_asked() -> None:
    recordings = Recordings(())
    assert recordings.is_complete
    assert recordings.choose_at_rest(0.0) is None
    assert recordings.choose_at_work([StepSize(5)], 0.0) is None


class Loop:
    """An engine's loop, turn by turn, over an executor that can record."""

    def __init__(self, *sizes: int, mixed: Sequence[int] = ()) -> None:
        self.ours, theirs = socket.socketpair()
        recordable = (*map(StepSize, sizes), *(StepSize(size, is_mixed=True) for size in mixed))
        bounds = msgspec.structs.replace(limits(depth=2, budget=8), recordable=tuple(sorted(recordable)))
        self.scheduler, self.executor = Scheduler(bounds), SimulatedExecutor(bounds, next_token)
        self.loop = EngineLoop(
            EngineChannel(theirs), self.scheduler, self.executor, build_grammar, lambda: None
        )
        self.theirs = theirs

    def turn(self, count: int = 1) -> list[StepSize]:
        for _ in range(count):
            self.loop.turn()
        return self.executor.recorded


@pytest.fixture
def make_loop() -> Iterator[type[Loop]]:
    made: list[Loop] = []

    class Kept(Loop):
        def __init__(self, *sizes: int, mixed: Sequence[int] = ()) -> None:
            super().__init__(*sizes, mixed=mixed)
            made.append(self)

    yield Kept
    for loop in made:
        loop.ours.close()
        loop.theirs.close()


def test_sizes_are_recorded_while_there_is_no_work(make_loop: type[Loop]) -> None:
    loop = make_loop(1, 2)
    assert loop.turn() == [StepSize(2)]
    assert loop.turn() == [StepSize(2), StepSize(1)]


def test_under_load_the_steps_in_flight_end_first_and_the_others_go_on(make_loop: type[Loop]) -> None:
    """The executor refuses a recording with a step in flight."""
    loop = make_loop(1, 2)
    loop.ours.sendall(encode_frame(request(1, [1, 2, 3], max_tokens=40)))
    loop.turn(12)
    assert loop.executor.recorded == [StepSize(2)]
    assert loop.scheduler.num_in_flight > 0
    while loop.scheduler.has_work:
        loop.turn()
    assert loop.turn(2) == [StepSize(2), StepSize(1)], "the other one once nobody waits"


def test_under_load_a_step_with_a_prompt_is_recorded_too(make_loop: type[Loop]) -> None:
    loop = make_loop(mixed=(4, 8))
    loop.ours.sendall(encode_frame(request(1, [1, 2, 3], max_tokens=40)))
    loop.turn(12)
    assert loop.scheduler.has_work
    assert loop.executor.recorded == [StepSize(8, is_mixed=True)]


def test_what_steps_compiled_is_told_in_the_stats(
    make_loop: type[Loop], monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = make_loop()
    collect = loop.executor.collect
    monkeypatch.setattr(loop.executor, "collect", lambda: msgspec.structs.replace(collect(), num_compiled=2))
    loop.ours.sendall(encode_frame(request(1, [1, 2, 3], max_tokens=3)))
    loop.turn(4)
    decoder: FrameDecoder[FromEngine] = FrameDecoder(FromEngine)  # type: ignore[arg-type]
    messages = [one for one in decoder.feed(loop.ours.recv(1 << 16)) if isinstance(one, StepOutputs)]
    assert [message.stats.num_compiled for message in messages][-1] == 2 * 3
