"""What is measured of a replica that runs, over HTTP. Each measure yields its rows."""

import itertools
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.costs import Costs
from benchmarks.gpu.rows import Check, Figure, Row, at_least, at_most
from benchmarks.gpu.served.checkpoint import time_reading
from benchmarks.gpu.served.client import Ask, Asked, Clients
from benchmarks.gpu.served.counts import find_faults
from benchmarks.gpu.served.process import Replica
from benchmarks.gpu.served.streams import Pace, Stream, find_fault, measure_pace
from benchmarks.gpu.served.workload import Workload, checkpoint_of, keep_rate
from benchmarks.runtime.client import OpenAI

OF_LIMIT, OF_GREEDY, OF_UNKNOWN, OF_FILES = at_least(0.8), at_least(0.9), at_most(0.1), at_least(0.8)
NUM_STORMS = 3
MEMORY_BYTES = 64 << 20
"""A device's free memory may differ by so much: other libraries' buffers."""


@dataclass(frozen=True, slots=True)
class Session:
    """A replica, those who ask it, and what is asked."""

    bench: Bench
    work: Workload
    replica: Replica
    clients: Clients
    bandwidth: float
    """Bytes a second of a copy on the device."""
    seeds: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    """Each is taken once, so the prefix cache knows no prompt."""

    def make_asks(self, count: int, length: int, num_tokens: int, **other: Any) -> list[Ask]:
        """Return greedy requests, unless `other` fields say more. None has a prompt of an earlier one."""
        return self.continue_prompt([], count, length, num_tokens, **other)

    def continue_prompt(
        self, prefix: list[int], count: int, length: int, num_tokens: int, **other: Any
    ) -> list[Ask]:
        """Return requests whose prompts begin with a prefix, and go on with `length` tokens of their own."""
        prompts = self.work.draw_prompts(count, length, next(self.seeds))
        dialect = OpenAI(self.replica.model)
        return [Ask(dialect.body(prefix + prompt, num_tokens) | other) for prompt in prompts]

    def start(self, asks: Sequence[Ask]) -> Asked:
        """Send requests."""
        return self.clients.start(self.replica.base, asks)

    def ask(self, asks: Sequence[Ask]) -> list[Stream]:
        """Send requests and wait for all tokens. Raises ValueError if some are missing."""
        streams = self.start(asks).collect()
        if fault := find_fault(streams, asks[0].body["max_tokens"]):
            raise ValueError(f"{len(asks)} streams: {fault}")
        return streams


Measure = Callable[[Session], Iterator[Row]]


def measure_start(session: Session) -> Iterator[Row]:
    """Tell the seconds from the start of the command to the first token, and until graphs are recorded."""
    ready = session.replica.await_ready()
    (first,) = session.ask(session.make_asks(1, session.work.prompt, 2))
    first_token = first.times[0] - session.replica.group.began
    phases = session.replica.read_counts().startup_seconds
    for phase, seconds in phases.items():
        yield Figure(f"start: the engine's {phase}", seconds, "s")
    yield Figure("start: before and beside the engine", ready - sum(phases.values()), "s")
    yield Figure("start: until Ready", ready, "s")
    yield Figure("start: until the first token", first_token, "s")
    yield Figure("first token of the first request", first.first_token_seconds * 1e3, "ms")
    yield Figure("recording of graphs at rest, after that", session.replica.await_rest(), "s")
    reading = time_reading(checkpoint_of(session.bench))
    name, facts = "the weights' rate over that of reading their files", {"reading_seconds": reading}
    yield Figure(f"start: {name}", reading / phases["weights"], "", OF_FILES, facts)


def measure_first_tokens(session: Session) -> Iterator[Row]:
    """Tell the times to the first token of long prompts, alone and beside streams that decode."""
    work = session.work
    for length in work.long_prompts:
        alone = [session.ask([ask])[0] for ask in session.make_asks(work.rounds + 1, length, 2)]
        yield _render_first_tokens(f"first token, prompt of {length}, alone", alone)
    for length in work.long_prompts:
        decoding = session.make_asks(work.decoders, work.prompt, work.endless)
        asks = session.make_asks(work.rounds + 1, length, 2)
        others, asked = session.clients.ask_beside(session.replica.base, decoding, asks)
        name = f"prompt of {length} beside {work.decoders}"
        yield Check(f"{name}: they outlast it", all(stream.is_cancelled for stream in others))
        yield _render_first_tokens(f"first token, {name}", asked)
        pace = measure_pace(others)
        yield Figure(f"{name}: their mean gap", pace.mean_gap * 1e3, "ms")
        yield Figure(f"{name}: their longest gap", pace.longest_gap * 1e3, "ms")


def _render_first_tokens(name: str, streams: Sequence[Stream]) -> Row:
    """Tell the median of all streams but the first, which warms up."""
    times = [stream.first_token_seconds for stream in streams[1:]]
    return Figure(name, statistics.median(times) * 1e3, "ms", facts={"rounds_seconds": times})


def measure_streams(session: Session) -> Iterator[Row]:
    """Tell the pace of streams that are there at the same time."""
    work = session.work
    for count in work.streams:
        session.ask(session.make_asks(count, work.prompt, work.output // 4))  # warms up
        pace = measure_pace(session.ask(session.make_asks(count, work.prompt, work.output)))
        name = f"{count} streams" if count > 1 else "1 stream"
        yield Figure(f"{name}: tokens", pace.tokens_per_second, "tokens/s")
        yield Figure(f"{name}: between tokens, mean", pace.mean_gap * 1e3, "ms")
        yield Figure(f"{name}: between tokens, p50", pace.gap_p50 * 1e3, "ms")
        yield Figure(f"{name}: between tokens, p99", pace.gap_p99 * 1e3, "ms")
        yield Figure(f"{name}: first token, p50", pace.first_token_p50 * 1e3, "ms")


def measure_prefixes(session: Session) -> Iterator[Row]:
    """Compare prompts that begin as an earlier one did with prompts that nobody has sent."""
    work, length = session.work, session.work.long_prompts[-1]
    rounds = []
    for _ in range(work.rounds + 1):
        (prefix,) = work.draw_prompts(1, length, next(session.seeds))
        asks = session.continue_prompt(prefix, 2, work.new, 2)
        rounds.append([session.ask([ask])[0].first_token_seconds for ask in asks])
    ratio = statistics.median(second / first for first, second in rounds[1:])  # the first warms up
    facts = {"rounds_seconds": rounds[1:]}
    name = f"first token, {work.new} tokens after {length} known ones"
    yield Figure(f"{name}: over none known", ratio, "", OF_UNKNOWN, facts)
    count, common = work.compared, work.long_prompts[0]
    alone = measure_pace(session.ask(session.make_asks(count, common + work.new, work.output)))
    (prefix,) = work.draw_prompts(1, common, next(session.seeds))
    shared = measure_pace(session.ask(session.continue_prompt(prefix, count, work.new, work.output)))
    ratio = shared.tokens_per_second / alone.tokens_per_second
    yield Figure(f"{count} streams after {common} common tokens: tokens over none in common", ratio, "")


def measure_compared(session: Session) -> Iterator[Row]:
    """Compare greedy streams with the device's limit, and sampled ones with greedy ones."""
    work = session.work
    session.ask(_mix(session))  # warms up
    rounds = [_measure_round(session) for _ in range(work.rounds)]
    rate = statistics.median(one.greedy.tokens_per_second for one in rounds)
    keep_rate(session.bench, "replica", rate)
    name = f"{work.compared} streams"
    yield Figure(f"{name}: tokens, median of rounds", rate, "tokens/s")
    context = work.prompt + work.output // 2
    least = Costs.of(work.config).step_bytes([context] * work.compared) / session.bandwidth
    step = statistics.median(one.step_seconds for one in rounds)
    facts = {"bandwidth_bytes_per_second": session.bandwidth, "context_tokens": context, "step_seconds": step}
    yield Figure(f"{name}: least time of a step over its time", least / step, "", OF_LIMIT, facts)
    yield Figure(f"{name}: tokens over those at the limit", rate * least / work.compared, "", facts=facts)
    ratio = statistics.median(one.mixed.tokens_per_second / one.greedy.tokens_per_second for one in rounds)
    yield Figure(f"{name}, sampled: over greedy ones", ratio, "", OF_GREEDY)
    for kind, paces in (
        ("greedy", [one.greedy for one in rounds]),
        ("sampled", [one.mixed for one in rounds]),
    ):
        gap = statistics.median(pace.mean_gap for pace in paces)
        yield Figure(f"{name}, {kind}: between tokens, mean", gap * 1e3, "ms")


class Round(NamedTuple):
    """Greedy and sampled streams, one after the other."""

    greedy: Pace
    mixed: Pace
    step_seconds: float
    """Of a greedy decode step, as the replica counts."""


def _measure_round(session: Session) -> Round:
    work, before = session.work, session.replica.read_counts()
    greedy = session.ask(session.make_asks(work.compared, work.prompt, work.output))
    session.replica.await_idle()
    after = session.replica.read_counts()
    mixed = session.ask(_mix(session))
    return Round(
        greedy=measure_pace(greedy),
        mixed=measure_pace(mixed),
        step_seconds=(after.decode_seconds - before.decode_seconds)
        / (after.decode_steps - before.decode_steps),
    )


def _mix(session: Session) -> list[Ask]:
    """Return sampled requests with penalties and seeds, every other one with log-probabilities."""
    work = session.work
    asks = session.make_asks(
        work.compared, work.prompt, work.output, temperature=0.8, top_p=0.9, presence_penalty=0.5
    )
    return [
        ask._replace(body=ask.body | {"seed": number} | ({"logprobs": 5} if number % 2 else {}))
        for number, ask in enumerate(asks)
    ]


def measure_storms(session: Session) -> Iterator[Row]:
    """Cancel all streams at random moments. Tell how soon nothing is held any more."""
    work, device = session.work, session.bench.device
    draw = random.Random(7)  # noqa: S311  a load, no secret
    seconds, free = [], []
    for number in range(NUM_STORMS):
        asks = session.make_asks(work.stormed, work.prompt, work.endless)
        asked = session.start([ask._replace(cancel_seconds=draw.uniform(0.02, 1.0)) for ask in asks])
        while not asked.is_over:
            session.replica.read_counts()
            time.sleep(0.02)
        streams = asked.collect()
        errors = [stream.error for stream in streams if stream.error is not None]
        num_cancelled = sum(stream.is_cancelled for stream in streams)
        facts = {"cancelled": num_cancelled, "errors": errors[:3]}
        yield Check(f"storm {number}: streams were cancelled", num_cancelled > 0 and not errors, facts)
        seconds.append(session.replica.await_idle())
        free.append(device.free_bytes())
    yield Figure("after a storm: until nothing is in use", max(seconds), "s")
    lost = free[0] - free[-1]  # the first one's batches may be larger than any before
    yield Check("storms keep no memory of the device", lost <= MEMORY_BYTES, {"bytes": lost})


def check_counts(session: Session) -> Iterator[Row]:
    """Check that sequences and KV blocks were conserved whenever they were counted."""
    session.replica.await_idle()
    counts, seen = session.replica.read_counts(), session.replica.seen
    faults = find_faults(seen)
    yield Check("counts and KV blocks are conserved", not faults, {"faults": faults, "readings": len(seen)})
    yield Figure("kernels compiled while serving", counts.compiled, "", at_most(0))
    yield Figure("preemptions", counts.preempted, "")
    yield Figure("highest use of the KV cache", max(one.kv_usage for one in seen), "of blocks")


def measure_drain(session: Session) -> Iterator[Row]:
    """End the replica as a kubelet does while streams are in flight."""
    work = session.work
    asks = session.make_asks(work.decoders, work.prompt, work.drained)
    asked = session.start(asks)
    session.replica.await_running(work.decoders)
    began = time.perf_counter()
    status = session.replica.drain()
    ended = time.perf_counter()
    streams = asked.collect()
    fault = find_fault(streams, work.drained)
    yield Check("streams in flight at SIGTERM get all their tokens", fault is None, {"fault": fault})
    yield Check("the replica ends with status 0", status == 0, {"status": status})
    last = max((stream.times[-1] for stream in streams if stream.times), default=began)
    yield Figure("SIGTERM to the last token", last - began, "s")
    yield Figure("last token to the end of the replica", ended - last, "s")


MEASURES: dict[str, Measure] = {
    "start": measure_start,
    "first tokens": measure_first_tokens,
    "streams": measure_streams,
    "prefixes": measure_prefixes,
    "comparisons": measure_compared,
    "storms": measure_storms,
    "counts": check_counts,
    "drain": measure_drain,
}


def measure_all(session: Session) -> Iterator[Row]:
    """Do one measure after the other. One that fails leaves a failed check, and the others go on."""
    for name, measure in MEASURES.items():
        try:
            yield from measure(session)
        except Exception as error:  # noqa: BLE001  the device is lent: the other measures shall use it
            yield Check(f"{name}: runs to its end", holds=False, facts={"error": f"{error!r:.500}"})
