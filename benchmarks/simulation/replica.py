"""A real replica: started, asked with fixed batches and Poisson loads over HTTP, and read by its metrics."""

import asyncio
import itertools
import random
import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tokenizers import Tokenizer

from benchmarks.distinct import NUMBER, DistinctTarget
from benchmarks.runtime.client import OpenAI
from benchmarks.runtime.engines import PORT, EngineSpec, ServerEngine
from benchmarks.runtime.errors import EngineError
from benchmarks.runtime.metrics import read_totals
from benchmarks.runtime.ours import MODEL_NAME, SERVE
from benchmarks.runtime.progress import report
from benchmarks.runtime.workload import Case, Completion
from benchmarks.simulation.fit import Point, Shape, Tail
from millrace_runtime import contract
from testing.traffic import Load, Phase, Stream, percentile

MAX_BATCHED_TOKENS = 512
MAX_SEQUENCES = 16
STEP_METRICS = (
    contract.METRIC_STEP_SECONDS,
    contract.METRIC_STEP_TOKENS,
    contract.METRIC_STEP_CONTEXT_TOKENS,
)


@contextmanager
def start_replica(model: Path, logs: Path) -> Iterator["Replica"]:
    """Serve a model as a user would, and end it afterwards. Raises EngineError."""
    limits = ("--max-sequences", str(MAX_SEQUENCES), "--max-batched-tokens", str(MAX_BATCHED_TOKENS))
    address = ("--host", "127.0.0.1", "--port", PORT, "--live-port", "0")
    command = (*SERVE, "--model", str(model), "--served-name", MODEL_NAME, *address, *limits)
    spec = EngineSpec("millrace", "bf16", command, dialect=OpenAI(MODEL_NAME), ready_path="/readyz")
    with spec.start(logs) as server:
        assert isinstance(server, ServerEngine)
        yield Replica(server, Tokenizer.from_file(str(model / "tokenizer.json")))


class Replica:
    """A replica that is ready."""

    def __init__(self, server: ServerEngine, tokenizer: Tokenizer) -> None:
        self._server = server
        self._tokenizer = tokenizer
        self._numbers = itertools.count()

    def read_kv_tokens(self) -> int:
        """Return how many tokens its KV cache holds."""
        return int(self._read_totals()[contract.METRIC_KV_TOKENS])

    def complete(self, case: Case, seed: str) -> list[Completion]:
        """Send a case's prompts, random tokens of the model, all at once. Raises EngineError."""
        draw = random.Random(f"{case.name}-{seed}")  # noqa: S311  a workload, no secret
        size = self._tokenizer.get_vocab_size()
        prompts = [
            [draw.randrange(size // 2, size) for _ in range(case.num_prompt_tokens)]
            for _ in range(case.num_requests)
        ]
        return self._server.complete(case, prompts)

    def measure_steps(self, case: Case, times: int = 1) -> Point:
        """Return the means over the steps that a fixed batch takes. Raises EngineError."""
        before = self._read_totals()
        answers = [one for number in range(times) for one in self.complete(case, str(number))]
        after = self._read_totals()

        def rise(name: str) -> float:
            return after[name] - before.get(name, 0.0)

        steps = rise(f"{contract.METRIC_STEP_SECONDS}_count")
        names = (
            contract.METRIC_STEP_SECONDS,
            contract.METRIC_STEP_TOKENS,
            contract.METRIC_STEP_CONTEXT_TOKENS,
        )
        seconds, tokens, context = (rise(f"{name}_sum") / steps for name in names)
        paces = [(a.last_token - a.first_token) / (a.num_tokens - 1) for a in answers if a.num_tokens > 1]
        point = Point(seconds, tokens, context, statistics.mean(paces) if paces else seconds)
        report(
            f"{case.name}: {steps:.0f} steps of {1000 * seconds:.2f} ms and {tokens:.1f} tokens, "
            f"{1000 * point.period_seconds:.2f} ms from one to the next"
        )
        return point

    def send(self, shape: Shape, rate: float, seconds: float) -> list[Stream]:
        """Send a Poisson load. Raises EngineError where an answer is not what was asked for."""
        prompt, tokens = write_prompt(self._tokenizer, shape.prompt_tokens), shape.generation_tokens
        base, numbers = self._server.base, self._numbers
        target = DistinctTarget(base, model=MODEL_NAME, prompt=prompt, max_tokens=tokens, numbers=numbers)
        load = Load(target)
        streams = asyncio.run(load.run([Phase(seconds, rate)], seed=1))
        if wrong := [stream for stream in streams if stream.is_refused or stream.is_truncated]:
            raise EngineError(f"{len(wrong)} of {len(streams)} requests failed, the first: {wrong[0].error}")
        if not streams:
            raise EngineError(
                f"no request was due in {seconds:g} s at {rate:.3g} a second: write more --seconds"
            )
        return streams

    def _read_totals(self) -> dict[str, float]:
        return read_totals(self._server.base)


def write_prompt(tokenizer: Tokenizer, num_tokens: int) -> str:
    """Return a text of so many tokens as the replica counts them, or of the next fewer, with NUMBER first."""
    text = f"{NUMBER}Once upon a time there was a little girl."
    while len(tokenizer.encode(text).ids) < num_tokens:
        text += " She went to the park with her dog and they played all day."
    while len(tokenizer.encode(text).ids) > num_tokens:
        text = text[:-1]
    return text


def read_tail(streams: Sequence[Stream]) -> Tail:
    """Return P95 of what the clients saw."""
    firsts = [stream.time_to_first_token or 0.0 for stream in streams]
    paces = [((stream.ended or 0.0) - (stream.first_token or 0.0)) / (stream.asked - 1) for stream in streams]
    return Tail(percentile(firsts, 95), percentile(paces, 95))
