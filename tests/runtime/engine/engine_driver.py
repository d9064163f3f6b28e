"""A scheduler joined to the simulated executor, for the tests beside this."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from millrace_runtime.engine.scheduler import Scheduler
from millrace_runtime.engine.simulated_executor import SimulatedExecutor
from millrace_runtime.protocol.messages import Generate, SequenceOutput
from millrace_runtime.protocol.sampling import Sampling
from millrace_runtime.protocol.step import Limits, StepPlan

VOCABULARY = 50
MAX_STEPS = 20_000


def next_token(tokens: list[int]) -> int | None:
    """A text that depends on each of its tokens and their order, and on nothing else."""
    value = 7
    for token in tokens:
        assert token >= 0, "a token was read that nobody computed"
        value = (value * 31 + token + 1) % 1_000_003
    return value % VOCABULARY


def limits(
    num_blocks: int = 64, block_size: int = 4, num_slots: int = 4, depth: int = 1, length: int = 100
) -> Limits:
    return Limits(num_blocks, block_size, num_slots, depth, length, VOCABULARY)


def request(
    sequence_id: int, prompt: Iterable[int], max_tokens: int = 5, stop: Iterable[int] = ()
) -> Generate:
    return Generate(
        sequence_id=sequence_id,
        prompt=list(prompt),
        max_tokens=max_tokens,
        stop_token_ids=list(stop),
        sampling=Sampling(temperature=0.0),
        arrival=0.0,
    )


def expected(generate: Generate, max_length: int) -> tuple[list[int], str]:
    """What a sequence alone on an endless device would say."""
    tokens, outputs = list(generate.prompt), []
    while True:
        token = next_token(tokens)
        assert token is not None
        tokens.append(token)
        outputs.append(token)
        if token in generate.stop_token_ids:
            return outputs, "stop"
        if len(outputs) == generate.max_tokens or len(tokens) == max_length:
            return outputs, "length"


@dataclass
class Driver:
    """Runs steps as the engine process does, and gathers what each sequence said."""

    scheduler: Scheduler
    executor: SimulatedExecutor
    texts: dict[int, list[int]] = field(default_factory=dict)
    finished: dict[int, str] = field(default_factory=dict)
    errors: dict[int, str | None] = field(default_factory=dict)
    plans: list[StepPlan] = field(default_factory=list)

    def add(self, generate: Generate) -> None:
        self.scheduler.add(generate)
        self.texts[generate.sequence_id] = []

    def step(self) -> None:
        while (plan := self.scheduler.schedule()) is not None:
            self.executor.submit(plan)
            self.plans.append(plan)
        if self.scheduler.num_flights:
            for output in self.scheduler.commit(self.executor.collect()):
                self._take(output)
        self.scheduler.check_integrity()

    def run(self) -> None:
        for _ in range(MAX_STEPS):
            if not self.scheduler.has_work:
                return
            self.step()
        raise AssertionError("the sequences do not end")

    def _take(self, output: SequenceOutput) -> None:
        assert output.sequence_id not in self.finished, "a sequence spoke after its end"
        self.texts[output.sequence_id] += output.tokens
        if output.finish_reason is not None:
            self.finished[output.sequence_id] = output.finish_reason
            self.errors[output.sequence_id] = output.error


def driver(bounds: Limits | None = None, budget: int = 16) -> Driver:
    bounds = bounds or limits()
    return Driver(Scheduler(bounds, budget), SimulatedExecutor(bounds, next_token))
