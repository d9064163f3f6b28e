"""Speed of steps with a short prompt beside decoding sequences: graphs, eager, and what padding costs."""

import statistics
import time
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.rows import Figure, Row, at_most
from benchmarks.gpu.serving import Driver, Served, record
from benchmarks.gpu.whole_steps import CONTEXT, serve_large
from millrace_fit.plan import choose_mixed_sizes
from millrace_runtime.protocol.sampling import Sampling, build_costly_sampling

GREEDY = Sampling(temperature=0.0)
NUM_DECODES = 64
PROMPTS = (16, 65, 128, 129, 385, 448)
"""With 64 decodes: 80, 129, 192, 193, 449 and 512 tokens. The first ones of 192, 256 and 512 have the most
padding of their graphs."""
NUM_SLOTS = 256
ROUNDS = 12
PADDING = at_most(1.05)


class Pace(NamedTuple):
    """Mixed steps that follow each other, by their medians."""

    seconds: float
    """From one result to the next, with two in flight."""
    own_seconds: float
    """As the results show."""
    num_compiled: int


class MixedLoad:
    """Sequences that decode, and a new prompt in every step."""

    def __init__(self, bench: Bench, served: Served, num_decodes: int, sizes: Sequence[int]) -> None:
        """`sizes` are those of the recorded steps; without any all are eager."""
        self._num_slots, context = bench.sized(NUM_SLOTS, 24), bench.sized(CONTEXT, 20)
        self._longest = choose_mixed_sizes(bench.sized(512, 16))[-1]
        blocks = num_decodes * -(-served.length // 16) + bench.sized(1024, 40)
        executor = served.open(self._num_slots, blocks, self._longest, mixed=sizes)
        self.driver, self._vocabulary = Driver(executor), served.architecture.vocabulary_size
        self._free = deque(range(num_decodes, self._num_slots))
        self._device = bench.device
        for slot in range(num_decodes):
            self.driver.start(slot, self._prompt(slot, context), is_computed=True)
        # Eager, and with all that a draw can ask for: a recording launches every kernel of a draw.
        self.submit(2, build_costly_sampling(self._vocabulary))
        executor.collect()
        record(executor)

    def submit(self, length: int, sampling: Sampling = GREEDY) -> None:
        """Submit a step with a new prompt. Nobody keeps its sequence."""
        slot = self._free.popleft()
        self.driver.start(slot, self._prompt(slot, length), **msgspec.structs.asdict(sampling))
        self.driver.submit(self._longest)
        del self.driver.running[slot]

    def measure(self, length: int, num_steps: int) -> Pace:
        """Run steps with such prompts, two in flight. The first ones are left out."""
        collect, moments, own, num_compiled = self.driver.executor.collect, [], [], 0
        self._device.synchronize()
        self.submit(length)
        for number in range(num_steps):
            if number + 1 < num_steps:
                self.submit(length)
            result = collect()
            moments.append(time.perf_counter())
            own.append(result.seconds)
            num_compiled += result.num_compiled
        seconds = [after - before for before, after in pairwise(moments)]
        return Pace(statistics.median(seconds), statistics.median(own[1:]), num_compiled)

    def measure_alone(self, length: int, num_steps: int) -> float:
        """Return the seconds from the submission of a step to its result, with nothing else in flight."""
        spans = []
        for _ in range(num_steps):
            self._device.synchronize()
            began = time.perf_counter()
            self.submit(length)
            self.driver.executor.collect()
            spans.append(time.perf_counter() - began)
        return statistics.median(spans)

    def _prompt(self, slot: int, length: int) -> list[int]:
        return [(slot * 7 + place) % self._vocabulary for place in range(length)]


def measure_mixed_steps(bench: Bench) -> Iterator[Row]:
    """Tell the time of a mixed step: eager, by the usual graph, and by one of exactly its tokens."""
    served, num_decodes = serve_large(bench), bench.sized(NUM_DECODES, 2)
    prompts, num_steps = bench.sized(PROMPTS, (3,)), bench.sized(ROUNDS, 2)
    exact = [num_decodes + length for length in prompts]
    usual = choose_mixed_sizes(bench.sized(512, 16))
    found: dict[str, dict[int, Pace]] = {}
    for manner, sizes in (("eager", ()), ("graph", usual), ("exact graph", exact)):
        load = MixedLoad(bench, served, num_decodes, sizes)
        found[manner] = {length: load.measure(length, num_steps) for length in prompts}
        for length, pace in found[manner].items():
            name = f"{num_decodes} decodes and {length} prompt tokens, {manner}"
            yield Figure(f"{name}: time", pace.seconds * 1e3, "ms")
            yield Figure(f"{name}: own time", pace.own_seconds * 1e3, "ms")
        if manner == "graph":
            num_compiled = sum(pace.num_compiled for pace in found[manner].values())
            yield Figure("kernels compiled by mixed graphs", num_compiled, "", at_most(0))
        del load
    for length in prompts:
        usual_pace, exact_pace = found["graph"][length], found["exact graph"][length]
        name = f"{num_decodes} decodes and {length} prompt tokens: own time over that without padding"
        yield Figure(name, usual_pace.own_seconds / exact_pace.own_seconds, "", PADDING)
    padded, full = (found["graph"][prompts[number]].own_seconds for number in bench.sized((1, 2), (0, 0)))
    yield Figure("a graph of 192 tokens with the most padding over a full one", padded / full, "", PADDING)
    yield from _measure_alone(bench, served, usual)


def _measure_alone(bench: Bench, served: Served, usual: Sequence[int]) -> Iterator[Row]:
    """Tell the time of the step of a prompt without other sequences."""
    length, num_steps = bench.sized(16, 3), bench.sized(ROUNDS, 2)
    for manner, sizes in (("eager", ()), ("graph", usual)):
        seconds = MixedLoad(bench, served, 0, sizes).measure_alone(length, num_steps)
        yield Figure(f"a lone prompt of {length} tokens, {manner}", seconds * 1e3, "ms")
