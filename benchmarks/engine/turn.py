"""What a whole turn of the engine costs the host: receive, schedule, submit, send and collect."""

import contextlib
import json
import socket
import statistics
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import torch

from benchmarks.engine.counted_device import CountedDevice
from benchmarks.gpu.weights import TINY, RandomWeights, build_model
from millrace_fit.plan import choose_sizes
from millrace_kernels.paged_attention.cache import BLOCK_SIZE, KvCache
from millrace_runtime.engine.scheduler import Scheduler
from millrace_runtime.execution.kv_cache import allocate_cache
from millrace_runtime.execution.local import LocalExecutor
from millrace_runtime.execution.model_runner import TensorRunner
from millrace_runtime.execution.slots import SlotTable
from millrace_runtime.protocol.encoding import FrameDecoder, encode_frame, pack_tokens
from millrace_runtime.protocol.executor import Record
from millrace_runtime.protocol.messages import FromEngine, Generate, Grammar, NewSequence, StepOutputs
from millrace_runtime.protocol.sampling import Sampling
from millrace_runtime.protocol.step import KvGroup, Limits, Placement, StepPlan, StepResult, StepSize
from millrace_runtime.replica.engine_loop import EngineChannel, EngineLoop

TURN_MILLISECONDS, STEP_MILLISECONDS = 0.5, 0.2
"""The aims for a whole turn, and for its submission and collection alone."""
ROOT = Path(__file__).parents[2]
SPEEDS = ROOT / "benchmarks" / "results" / "gpu" / "h200" / "speed.json"
TORCH, TRITON = "host time of a launch by torch", "host time of a launch by Triton"
CHARGED_AS = {
    "copies": TORCH,
    "replays": TORCH,
    "launches": TORCH,
    "Triton launches": TRITON,
    "events": TORCH,
    "waits": TORCH,
}
"""The figure that each call of the driver is charged. There is none for a copy, a replay, an event or a wait;
by hand, a replay took longer than a launch by torch. So the sum is the least that the calls cost."""
NUM_SEQUENCES = (1, 64)
LENGTH = 2048
"""No sequence ends before the last turn."""
COUNTED_TURNS = 3 * BLOCK_SIZE
CPU = torch.device("cpu")


class Turn(NamedTuple):
    """A turn of the loop."""

    own_seconds: float
    """The median of the host's own time, without the driver's calls."""
    step_seconds: float
    """Of it, submission and collection."""
    calls: dict[str, float]
    """Calls of the driver by kind, on average."""

    def charge(self, tariff: Mapping[str, float]) -> float:
        """Return the seconds of its calls of the driver."""
        return sum(tariff[kind] * number for kind, number in self.calls.items())


class TimedExecutor(LocalExecutor):
    """Adds up the time of submissions and collections."""

    seconds = 0.0

    def submit(self, plan: StepPlan) -> None:
        """Submit, and add the time."""
        began = time.perf_counter()
        super().submit(plan)
        self.seconds += time.perf_counter() - began

    def collect(self) -> StepResult:
        """Collect, and add the time."""
        began = time.perf_counter()
        result = super().collect()
        self.seconds += time.perf_counter() - began
        return result


def open_executor(device: CountedDevice, num_sequences: int) -> TimedExecutor:
    """Return an executor of a tiny model, with a graph for each number of rows. They compute nothing."""
    architecture, model = build_model(TINY, RandomWeights(CPU, torch.float32, CPU), LENGTH)
    num_blocks = num_sequences * LENGTH // BLOCK_SIZE
    limits = Limits(
        groups=(KvGroup(num_blocks),),
        block_size=BLOCK_SIZE,
        num_slots=num_sequences,
        depth=2,
        max_model_length=LENGTH,
        vocabulary_size=architecture.vocabulary_size,
        max_batched_tokens=max(BLOCK_SIZE, num_sequences),
        recordable=tuple(map(StepSize, choose_sizes(num_sequences))),
    )

    def allocate() -> list[KvCache]:
        return allocate_cache(architecture, [num_blocks], torch.float32, CPU)

    runner = TensorRunner(model, CPU, recorder=device)
    placement = Placement("cuda", "a counted device", "float32", "FromCheckpoint", 1)
    executor = TimedExecutor(runner, SlotTable(limits, CPU), limits, CPU, allocate, placement=placement)
    for size in reversed(limits.recordable):
        executor.control(Record(size))
    executor.limits = msgspec.structs.replace(limits, recordable=())  # the loop has nothing left to record
    return executor


class DrivenLoop:
    """An engine's loop, with the other end of its channel."""

    def __init__(self, executor: TimedExecutor, stack: contextlib.ExitStack) -> None:
        """Its sockets are closed with the stack."""
        mine, theirs = (stack.enter_context(one) for one in socket.socketpair())
        self._executor, self._theirs = executor, theirs
        scheduler, channel = Scheduler(executor.limits), EngineChannel(mine)
        self._loop = EngineLoop(channel, scheduler, executor, _compile_nothing, lambda: None)
        self._decoder: FrameDecoder[FromEngine] = FrameDecoder(FromEngine)  # type: ignore[arg-type]
        self.num_tokens: Counter[int] = Counter()
        """What was sent of each sequence."""

    def ask(self, number: int) -> None:
        """Ask for a sequence that decodes from its first step on."""
        new = [NewSequence(number, Sampling())]
        request = Generate(
            sequences=new, prompt=pack_tokens([number]), max_tokens=LENGTH - 1, stop_token_ids=[]
        )
        self._theirs.sendall(encode_frame(request))

    def turn(self) -> tuple[float, float]:
        """Return the seconds of a turn, and those of submission and collection. Then read what it sent."""
        self._executor.seconds = 0.0
        began = time.perf_counter()
        self._loop.turn()
        seconds = time.perf_counter() - began
        with contextlib.suppress(BlockingIOError):  # it had nothing to send
            for message in self._decoder.feed(self._theirs.recv(1 << 20, socket.MSG_DONTWAIT)):
                assert isinstance(message, StepOutputs)
                for output in message.outputs:
                    assert output.error is None, output.error
                    self.num_tokens[output.sequence_id] += len(output.tokens)
        return seconds, self._executor.seconds


def _compile_nothing(grammar: Grammar) -> Any:
    raise AssertionError(f"nobody asks for {grammar}")


def measure_turn(num_sequences: int, num_turns: int) -> Turn:
    """Decode so many sequences, for so many turns after those that start them.

    They start over the steps that fill a block, so in each step as many of them take the next one.
    """
    device = CountedDevice()
    with device.stand_in(), contextlib.ExitStack() as stack:
        loop = DrivenLoop(open_executor(device, num_sequences), stack)
        for step in range(BLOCK_SIZE):
            for number in range(step, num_sequences, BLOCK_SIZE):
                loop.ask(number)
            loop.turn()
        with device.counting_launches():
            device.counts.clear()
            for _ in range(COUNTED_TURNS):
                loop.turn()
            calls = {kind: device.counts[kind] / COUNTED_TURNS for kind in CHARGED_AS}
        seconds, step_seconds = zip(*(loop.turn() for _ in range(num_turns)), strict=True)
        assert len(loop.num_tokens) == num_sequences
    return Turn(statistics.median(seconds), statistics.median(step_seconds), calls)


def read_tariff() -> dict[str, float]:
    """Return the seconds that each kind of call is charged, as measured on a GPU's host."""
    steps = json.loads(SPEEDS.read_text(encoding="utf-8"))["steps"]
    microseconds = {row["name"]: row["value"] for step in steps for row in step["rows"] if "value" in row}
    return {kind: microseconds[name] / 1e6 for kind, name in CHARGED_AS.items()}


def report_turns(num_turns: int) -> dict[str, Any]:
    """Measure and print, and return the figures with the names of those that miss their aims."""
    tariff = read_tariff()
    figures: dict[str, Any] = {}
    missed: list[str] = []
    told = ", ".join(f"{kind} {seconds * 1e6:.2f}" for kind, seconds in tariff.items())
    print(f"charged by {SPEEDS.relative_to(ROOT)}, µs: {told}")
    for count in NUM_SEQUENCES:
        turn = measure_turn(count, num_turns)
        calls, charged = {k: number for k, number in turn.calls.items() if number}, turn.charge(tariff)
        print(f"{count} sequences, calls of a turn: {', '.join(f'{calls[kind]:g} {kind}' for kind in calls)}")
        for name, own, aim in (
            ("turn", turn.own_seconds, TURN_MILLISECONDS),
            ("submit_and_collect", turn.step_seconds, STEP_MILLISECONDS),
        ):
            own_ms, whole_ms = round(own * 1e3, 3), round((own + charged) * 1e3, 3)
            missed += [f"{name}_ms_{count}"] * (whole_ms > aim)
            verdict = "MISSED" if whole_ms > aim else "holds"
            print(f"  {name:<20}{own_ms:.3f} ms, with the calls {whole_ms:.3f} ms; aim <= {aim}: {verdict}")
            figures |= {f"{name}_own_ms_{count}": own_ms, f"{name}_ms_{count}": whole_ms}
        figures[f"calls_{count}"] = calls
    return figures | {"missed": missed}
