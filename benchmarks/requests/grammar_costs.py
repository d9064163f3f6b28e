"""What a grammar costs: to compile, to mask with, and of the time in which no other thread runs Python.

All are CPU times of one thread, over schemas in the shape of public ones.
"""

import itertools
import json
import random
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.requests.schemas import draw_schemas
from benchmarks.runtime.figures import Spread, spread
from benchmarks.runtime.progress import report
from millrace_runtime.chat.tokenizer import Tokenizer
from millrace_runtime.grammar.grammar import write_grammar
from millrace_runtime.grammar.matcher import Matcher, Vocabulary
from millrace_runtime.grammar.source import GrammarKind

NUM_SCHEMAS = 500
NUM_WATCHED = 20
"""Of these schemas, the longest: they hold the lock longest."""
_NUM_TOKENS = 32
"""Of a random text that each grammar masks."""
_NEVER_SECONDS = 1000.0


class RoundCosts(NamedTuple):
    """Of one round, in milliseconds."""

    compile_p50: float
    compile_p99: float
    mask_p99: float
    lock_held: float
    """The longest time, of all calls."""


def measure_grammars(tokenizer_path: Path, num_rounds: int, num_schemas: int) -> dict[str, Spread]:
    """Return each figure's spread over the rounds."""
    tokenizer = Tokenizer.load(tokenizer_path)
    vocabulary = Vocabulary(tokenizer)
    schemas = [json.dumps(schema) for schema in draw_schemas(num_schemas)]
    rounds = []
    for number in range(num_rounds):
        rounds.append(measure_round(vocabulary, schemas, number))
        report(f"round {number + 1}: grammars {rounds[-1]}")
    names = ("schema_compile_ms_p50", "schema_compile_ms_p99", "mask_ms_p99", "lock_held_ms")
    return {name: spread(found) for name, found in zip(names, zip(*rounds, strict=True), strict=True)}


def measure_round(vocabulary: Vocabulary, schemas: Sequence[str], seed: int) -> RoundCosts:
    """Compile each schema, mask a text of each, and watch the longest ones."""
    compiles, masks = [], []
    rng = random.Random(seed)  # noqa: S311  a workload, no secret
    for schema in schemas:
        began = time.thread_time()
        root = compile_schema(vocabulary, schema)
        compiles.append(time.thread_time() - began)
        masks += time_masks(vocabulary, root, rng)
    longest = sorted(schemas, key=len)[-NUM_WATCHED:]
    held = max(time_lock(vocabulary, schema) for schema in longest)
    found = (
        statistics.median(compiles),
        compute_percentile(compiles, 0.99),
        compute_percentile(masks, 0.99),
        held,
    )
    return RoundCosts(*(1000 * seconds for seconds in found))


def compile_schema(vocabulary: Vocabulary, schema: str) -> Matcher:
    """Do what the engine does for a new grammar."""
    return Matcher.build(vocabulary, write_grammar(GrammarKind.SCHEMA, schema))


def time_masks(vocabulary: Vocabulary, root: Matcher, rng: random.Random) -> list[float]:
    """Return the seconds of each mask of a random text."""
    matcher, mask, seconds = root.fork([]), bytearray(vocabulary.end_bits.nbytes), []
    for _ in range(_NUM_TOKENS):
        began = time.thread_time()
        matcher.fill(mask)
        seconds.append(time.thread_time() - began)
        allowed = list_allowed(mask)
        if not len(allowed):
            break
        matcher.consume(int(rng.choice(allowed)))
        if matcher.is_stopped:
            break
    return seconds


def list_allowed(mask: bytearray) -> NDArray[np.intp]:
    """Return the tokens that a mask allows."""
    return np.flatnonzero(np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little"))


def time_lock(vocabulary: Vocabulary, schema: str) -> float:
    """Return the longest CPU time of the calls in a grammar's life that keep Python's lock."""
    text, kept = write_grammar(GrammarKind.SCHEMA, schema), list[Matcher]()
    mask = bytearray(vocabulary.end_bits.nbytes)
    calls: tuple[Callable[[], object], ...] = (
        lambda: kept.append(Matcher.build(vocabulary, text)),
        lambda: kept.append(kept[0].fork([])),
        lambda: kept[1].fill(mask),
        lambda: kept[1].consume(int(list_allowed(mask)[0])),
        kept.clear,
    )
    return max(time_held(call) for call in calls)


def time_held(call: Callable[[], object]) -> float:
    """Return the CPU time of a call that keeps the lock; 0 if another thread runs meanwhile.

    The interpreter takes the lock from nobody here. So the other thread runs only if the call lets it.
    """
    count, is_done = itertools.count(1), threading.Event()
    last, interval = 0, sys.getswitchinterval()

    def run() -> None:
        nonlocal last
        while not is_done.is_set():
            last = next(count)
            time.sleep(0)

    sys.setswitchinterval(_NEVER_SECONDS)
    thread = threading.Thread(target=run)
    thread.start()
    try:
        while not last:
            time.sleep(0)
        before, began = last, time.thread_time()
        call()
        return 0.0 if last != before else time.thread_time() - began
    finally:
        is_done.set()
        thread.join()
        sys.setswitchinterval(interval)


def compute_percentile(values: Sequence[float], share: float) -> float:
    """Return the value that this share of them does not exceed."""
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]
