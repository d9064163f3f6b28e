"""A replica's metrics, which the event loop counts and Prometheus reads.

At every scrape, in sequences (one for each choice of each prompt):
received = rejected + finished + running + waiting.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

import msgspec
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from millrace_runtime import contract
from millrace_runtime.api.answer.choice import Choice
from millrace_runtime.api.engine_client import EngineClient
from millrace_runtime.protocol.messages import Stats, StepTiming

METRIC_PREEMPTIONS = "vllm:num_preemptions"
METRIC_COMPILATIONS = "millrace:kernel_compilations"
METRIC_CACHE_CONFIG = "vllm:cache_config_info"
METRIC_PROMPT_TOTAL = "vllm:prompt_tokens"
METRIC_GENERATION_TOTAL = "vllm:generation_tokens"
_STEP_SECONDS = (
    0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25,
    0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
)  # fmt: skip
_SEQUENCES = tuple(float(2**power) for power in range(11))
FINISH_REASONS = ("stop", "length", "abort", "error")


class Histogram:
    """Counts of observations up to each bound, and their sum."""

    __slots__ = ("_bounds", "_counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        """`bounds` are ascending upper bounds; +Inf is added."""
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        """How many values were observed."""
        return sum(self._counts)

    def buckets(self) -> list[tuple[str, float]]:
        """Return (upper bound, values up to it) for each bound and +Inf, as Prometheus writes them."""
        names = [*(repr(float(bound)) for bound in self._bounds), "+Inf"]
        return list(zip(names, map(float, accumulate(self._counts)), strict=True))


class ReplicaMetrics(Collector):
    """Counters and histograms of one replica, and gauges read from the engine's newest stats."""

    def __init__(self, engine: EngineClient, model_name: str) -> None:
        self._engine = engine
        self._model_name = model_name
        self.num_received = 0
        self.rejected: Counter[str] = Counter()
        self.finished: Counter[str] = Counter(dict.fromkeys(FINISH_REASONS, 0))
        self.queue_time = Histogram(contract.LATENCY_BUCKETS)
        self.time_to_first_token = Histogram(contract.LATENCY_BUCKETS)
        self.inter_token = Histogram(contract.TOKEN_BUCKETS)
        self._time_per_output_token = Histogram(contract.TOKEN_BUCKETS)
        self._request_seconds = Histogram(contract.REQUEST_BUCKETS)
        self._prompt_tokens = Histogram(contract.LENGTH_BUCKETS)
        self._computed_prompt_tokens = Histogram(contract.LENGTH_BUCKETS)
        self._generation_tokens = Histogram(contract.ANSWER_BUCKETS)
        self._step_seconds = {kind: Histogram(_STEP_SECONDS) for kind in ("decode", "mixed")}
        self._step_sequences = Histogram(_SEQUENCES)
        self._step_context_tokens = Histogram(contract.LENGTH_BUCKETS)
        self._step_tokens = Histogram(contract.LENGTH_BUCKETS)
        engine.observe_timing(self.observe_step)

    @property
    def num_in_flight(self) -> int:
        """Sequences that were received, and neither rejected nor finished."""
        return self.num_received - self.rejected.total() - self.finished.total()

    @property
    def num_running(self) -> int:
        """Sequences that the engine computes. During the reading and tokenising a sequence counts as waiting.

        The engine's newest stats may still count sequences that have been aborted since.
        """
        return min(self._engine.stats.num_running, self._engine.num_open)

    @property
    def num_waiting(self) -> int:
        """Sequences in flight that the engine does not compute."""
        return self.num_in_flight - self.num_running

    @property
    def kv_usage(self) -> float:
        """Share of the KV blocks in use, 0 to 1."""
        stats = self._engine.stats
        return 1 - stats.num_free_blocks / stats.num_blocks if stats.num_blocks else 0.0

    def finish(self, choice: Choice, arrival: float, now: float) -> None:
        """Count a choice that has its finish reason, and its latencies if its answer is complete."""
        reason = choice.finish_reason or "error"
        self.finished[reason] += 1
        self._prompt_tokens.observe(choice.num_prompt_tokens)
        self._computed_prompt_tokens.observe(choice.num_prompt_tokens - choice.num_cached_tokens)
        self._generation_tokens.observe(choice.num_tokens)
        if reason not in ("stop", "length"):
            return
        self._request_seconds.observe(now - arrival)
        if (
            choice.first_token_at is not None
            and (num_later := choice.num_tokens - choice.num_first_tokens) > 0
        ):
            seconds = choice.last_token_at - choice.first_token_at
            self._time_per_output_token.observe(seconds / num_later)

    def observe_step(self, timing: StepTiming) -> None:
        """Count one step of the engine."""
        self._step_seconds["decode" if timing.is_decode_only else "mixed"].observe(timing.seconds)
        self._step_sequences.observe(timing.num_sequences)
        self._step_context_tokens.observe(timing.num_context_tokens)
        self._step_tokens.observe(timing.num_tokens)

    def collect(self) -> Iterator[Metric]:
        """Yield the present value of every metric."""
        yield from self._gauges()
        yield from self._counters()
        yield from self._histograms()
        yield from self._engine_facts()

    def _gauges(self) -> Iterator[Metric]:
        yield self._gauge(contract.METRIC_WAITING, "Sequences that wait.", self.num_waiting)
        yield self._gauge(contract.METRIC_RUNNING, "Sequences that the engine computes.", self.num_running)
        yield self._gauge(contract.METRIC_KV_USAGE, "Share of the KV blocks in use, 0 to 1.", self.kv_usage)

    def _counters(self) -> Iterator[Metric]:
        yield self._counter(contract.METRIC_RECEIVED, "Sequences received.", {(): self.num_received})
        rejected: dict[tuple[str, ...], float] = {
            (reason,): number for reason, number in self.rejected.items()
        }
        yield self._counter(contract.METRIC_REJECTED, "Sequences refused, by reason.", rejected, "reason")
        finished: dict[tuple[str, ...], float] = {
            (reason,): number for reason, number in self.finished.items()
        }
        yield self._counter(
            contract.METRIC_REQUEST_SUCCESS, "Sequences ended, by finish reason.", finished, "finished_reason"
        )
        yield self._counter(
            METRIC_PROMPT_TOTAL, "Prompt tokens of ended sequences.", {(): self._prompt_tokens.total}
        )
        yield self._counter(
            METRIC_GENERATION_TOTAL,
            "Generated tokens of ended sequences.",
            {(): self._generation_tokens.total},
        )
        yield from self._engine_counters(self._engine.stats)

    def _engine_counters(self, stats: Stats) -> Iterator[Metric]:
        for name, text, number in (
            (
                METRIC_PREEMPTIONS,
                "Preemptions: how often the engine put a sequence back into its queue.",
                stats.num_preemptions,
            ),
            (
                METRIC_COMPILATIONS,
                "Kernels compiled since the replica was ready. Steps waited for each.",
                stats.num_compiled,
            ),
            (
                contract.METRIC_PREFIX_QUERIES,
                "Tokens of prompts that were looked up in the prefix cache.",
                stats.num_prefix_queries,
            ),
            (
                contract.METRIC_PREFIX_HITS,
                "Tokens of prompts that the prefix cache had.",
                stats.num_prefix_hits,
            ),
            (contract.METRIC_DRAFTS, "Drafts that steps verified, and forced runs.", stats.num_drafts),
            (contract.METRIC_DRAFTED, "Tokens of these drafts and runs.", stats.num_drafted),
            (contract.METRIC_ACCEPTED, "Those of them that became text.", stats.num_accepted),
        ):
            yield self._counter(name, text, {(): number})

    def _histograms(self) -> Iterator[Metric]:
        for name, text, histogram in (
            (
                contract.METRIC_QUEUE,
                "Seconds from a request's arrival to the first step of a sequence.",
                self.queue_time,
            ),
            (
                contract.METRIC_TTFT,
                "Seconds from a request's arrival to the first token of a sequence.",
                self.time_to_first_token,
            ),
            (contract.METRIC_ITL, "Seconds between two outputs of a sequence.", self.inter_token),
            (
                contract.METRIC_TPOT,
                "Average seconds between the tokens of a sequence, from its first to its last.",
                self._time_per_output_token,
            ),
            (
                contract.METRIC_E2E,
                "Seconds from a request's arrival to the last token of a sequence.",
                self._request_seconds,
            ),
            (contract.METRIC_PROMPT_TOKENS, "Prompt tokens of a sequence.", self._prompt_tokens),
            (
                contract.METRIC_COMPUTED_PROMPT_TOKENS,
                "Prompt tokens of a sequence that the prefix cache did not have.",
                self._computed_prompt_tokens,
            ),
            (contract.METRIC_GENERATION_TOKENS, "Generated tokens of a sequence.", self._generation_tokens),
            (contract.METRIC_STEP_SEQUENCES, "Sequences in a step.", self._step_sequences),
            (contract.METRIC_STEP_CONTEXT_TOKENS, "KV tokens that a step read.", self._step_context_tokens),
            (contract.METRIC_STEP_TOKENS, "Tokens that a step computed.", self._step_tokens),
        ):
            yield self._histogram(name, text, {(): histogram})
        kinds: dict[tuple[str, ...], Histogram] = {
            (kind,): histogram for kind, histogram in self._step_seconds.items()
        }
        yield self._histogram(contract.METRIC_STEP_SECONDS, "Seconds of a step.", kinds, "kind")

    def _engine_facts(self) -> Iterator[Metric]:
        ready = self._engine.ready
        if ready is None:
            return
        startup = GaugeMetricFamily(
            contract.METRIC_STARTUP, "Seconds of a phase of the start.", labels=["model_name", "phase"]
        )
        for phase, seconds in ready.startup_seconds.items():
            startup.add_metric([self._model_name, phase], seconds)
        yield startup
        trials = GaugeMetricFamily(
            contract.METRIC_TRIAL_STEP,
            "Seconds of a trial step before the first request.",
            labels=["model_name", "tokens", "context_tokens"],
        )
        for step in ready.trial_steps:
            sizes = [str(step.num_tokens), str(step.num_context_tokens)]
            trials.add_metric([self._model_name, *sizes], step.seconds)
        yield trials
        yield self._gauge(contract.METRIC_KV_TOKENS, "Tokens that the KV cache holds.", ready.kv_tokens)
        yield self._gauge(
            contract.METRIC_MAX_MODEL_LENGTH,
            "The most tokens of prompt and output together.",
            ready.max_model_length,
        )
        yield self._gauge(
            contract.METRIC_MAX_SEQUENCES, "The most sequences that a step computes.", ready.max_sequences
        )
        shape = {"block_size": ready.block_size, "num_gpu_blocks": ready.num_blocks}
        yield self._info(METRIC_CACHE_CONFIG, "The KV cache's shape.", shape)
        placement = msgspec.structs.asdict(ready.placement)
        yield self._info(contract.METRIC_REPLICA, "What the replica computes with.", placement)

    def _info(self, name: str, text: str, labels: Mapping[str, str | int]) -> Metric:
        """Return a gauge that is always 1; the information is in its labels."""
        family = GaugeMetricFamily(name, text, labels=["model_name", *labels])
        family.add_metric([self._model_name, *map(str, labels.values())], 1)
        return family

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(name, text, labels=["model_name"])
        family.add_metric([self._model_name], value)
        return family

    def _counter(
        self, name: str, text: str, values: dict[tuple[str, ...], float], *labels: str
    ) -> CounterMetricFamily:
        family = CounterMetricFamily(name, text, labels=["model_name", *labels])
        for key, value in values.items():
            family.add_metric([self._model_name, *key], value)
        return family

    def _histogram(
        self, name: str, text: str, values: dict[tuple[str, ...], Histogram], *labels: str
    ) -> HistogramMetricFamily:
        family = HistogramMetricFamily(name, text, labels=["model_name", *labels])
        for key, histogram in values.items():
            family.add_metric([self._model_name, *key], histogram.buckets(), histogram.total)
        return family
