"""A scheduler joined to the simulated executor, for the tests beside this."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from millrace_runtime.engine.scheduler import Scheduler
from millrace_runtime.engine.simulated_executor import NextToken, SimulatedExecutor
from millrace_runtime.protocol.encoding import pack_tokens, unpack_tokens
from millrace_runtime.protocol.executor import mask_bytes
from millrace_runtime.protocol.messages import Generate, NewSequence, SequenceOutput, StepTiming
from millrace_runtime.protocol.sampling import Sampling
from millrace_runtime.protocol.step import KvGroup, Limits, StepPlan

VOCABULARY = 50
MAX_STEPS = 20_000
Grammar = Callable[[list[int]], set[int]]
"""Maps a sequence's tokens to those that may follow."""


def next_token(seen: list[list[int]]) -> int | None:
    """A text that depends on each token that a group sees and their order, and on nothing else."""
    value = 7
    for tokens in seen:
        for token in tokens:
            assert token >= 0, "a token was read that nobody computed"
            value = (value * 31 + token + 1) % 1_000_003
    return value % VOCABULARY


def limits(  # noqa: PLR0917
    num_blocks: int = 64,
    block_size: int = 4,
    num_slots: int = 4,
    depth: int = 1,
    length: int = 100,
    budget: int = 16,
) -> Limits:
    return Limits((KvGroup(num_blocks),), block_size, num_slots, depth, length, VOCABULARY, budget)


def request(
    sequence_id: int,
    prompt: Iterable[int],
    max_tokens: int = 5,
    stop: Iterable[int] = (),
    *,
    is_masked: bool = False,
    others: Iterable[int] = (),
) -> Generate:
    """`others`: ids of further choices of the prompt."""
    return Generate(
        sequences=[NewSequence(number, Sampling(temperature=0.0)) for number in (sequence_id, *others)],
        prompt=pack_tokens(prompt),
        max_tokens=max_tokens,
        stop_token_ids=list(stop),
        is_masked=is_masked,
    )


def expected(
    generate: Generate,
    max_length: int,
    groups: tuple[KvGroup, ...] = (KvGroup(0),),
    grammar: Grammar | None = None,
    draw: NextToken = next_token,
) -> tuple[list[int], str]:
    """What a sequence alone on an endless device would say."""
    tokens, outputs = list(unpack_tokens(generate.prompt)), []
    while True:
        token = draw([tokens[-(group.window or len(tokens)) :] for group in groups])
        if token is None:
            return outputs, "error"
        if grammar is not None and generate.is_masked:
            if not (allowed := grammar(tokens)):
                return outputs, "error"
            token = next(
                t % VOCABULARY for t in range(token, token + VOCABULARY) if t % VOCABULARY in allowed
            )
        tokens.append(token)
        outputs.append(token)
        if token in generate.stop_token_ids:
            return outputs, "stop"
        if len(outputs) == generate.max_tokens or len(tokens) == max_length:
            return outputs, "length"


def pack_mask(allowed: set[int]) -> bytes:
    return sum(1 << token for token in allowed).to_bytes(mask_bytes(VOCABULARY), "little")


@dataclass
class Driver:
    """Runs steps as the engine process does, and gathers what each sequence said."""

    scheduler: Scheduler
    executor: SimulatedExecutor
    texts: dict[int, list[int]] = field(default_factory=dict)
    finished: dict[int, str] = field(default_factory=dict)
    errors: dict[int, str | None] = field(default_factory=dict)
    plans: list[StepPlan] = field(default_factory=list)
    timings: list[StepTiming] = field(default_factory=list)
    grammar: Grammar = lambda _: set(range(VOCABULARY))
    has_late_masks: bool = False
    """Masks come when their step is to be collected, not when it was submitted."""
    _masks: dict[int, bytes] = field(default_factory=dict)

    def add(self, generate: Generate) -> None:
        self.scheduler.add(generate)
        for new in generate.sequences:
            self.texts[new.sequence_id] = []

    def step(self) -> None:
        while self.plan_next():
            pass
        self.collect()

    def plan_next(self) -> bool:
        """Submit another plan, if there is one."""
        plan = self.scheduler.schedule()
        if plan is None:
            return False
        self.scheduler.check_integrity()
        self.executor.submit(plan)
        self.plans.append(plan)
        if masks := self._make_masks(plan):
            self._masks[plan.step] = masks
        if not self.has_late_masks:
            self._provide(plan.step)
        return True

    def collect(self) -> None:
        if num_in_flight := self.scheduler.num_in_flight:
            self._provide(self.plans[-num_in_flight].step)
            committed = self.scheduler.commit(self.executor.collect())
            if committed.timing is not None:
                self.timings.append(committed.timing)
            for output in committed.outputs:
                self._record(output)
        self.scheduler.check_integrity()

    def _make_masks(self, plan: StepPlan) -> bytes:
        tenants = self.scheduler._residency._tenants
        masked = [tenants[row.slot] for row in plan.rows if row.is_masked]
        return b"".join(pack_mask(self.grammar(list(unpack_tokens(s.pack_tokens())))) for s in masked)

    def _provide(self, step: int) -> None:
        if step in self._masks:
            self.executor.provide_masks(step, memoryview(self._masks.pop(step)))

    def run(self) -> None:
        for _ in range(MAX_STEPS):
            if not self.scheduler.has_work:
                return
            self.step()
        raise AssertionError("the sequences do not end")

    def _record(self, output: SequenceOutput) -> None:
        assert output.sequence_id not in self.finished, "a sequence spoke after its end"
        self.texts[output.sequence_id] += output.tokens
        if output.finish_reason is not None:
            self.finished[output.sequence_id] = output.finish_reason
            self.errors[output.sequence_id] = output.error


def driver(bounds: Limits | None = None) -> Driver:
    bounds = bounds or limits()
    return Driver(Scheduler(bounds), SimulatedExecutor(bounds, next_token))
