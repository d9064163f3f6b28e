"""Texts with drafts are those without: the real scheduler over executors, with a toy for a draft model."""

import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from millrace_runtime.engine.matcher import Matcher
from millrace_runtime.engine.scheduler import Scheduler
from millrace_runtime.execution.local import LocalExecutor
from millrace_runtime.execution.speculation.proposer import Ask, PromptLookup, Proposer
from millrace_runtime.execution.speculation.speculation import Speculation
from millrace_runtime.grammar.grammar import write_grammar
from millrace_runtime.grammar.matcher import Matcher as LibraryMatcher
from millrace_runtime.grammar.source import GrammarKind
from millrace_runtime.protocol.encoding import pack_tokens
from millrace_runtime.protocol.executor import Executor, Record
from millrace_runtime.protocol.messages import Generate, Grammar, NewSequence, Stats
from millrace_runtime.protocol.sampling import Sampling
from millrace_runtime.protocol.step import Row, SlotStart, StepPlan, StepSize, TokenLogprobs
from millrace_runtime.replica.paced_matcher import PacedMatcher
from millrace_runtime.replica.settings import DEMO_PATH
from tests.runtime.engine.engine_driver import SetMatcher
from tests.runtime.execution.greedy import prompt
from tests.runtime.grammar.fitting import load_tokenizer, load_vocabulary

Open = Callable[..., LocalExecutor]
NUM_TOKENS = 24
EVEN = tuple(range(0, 199, 2))
SAMPLINGS: list[dict[str, Any]] = [
    {"temperature": 0.0, "num_logprobs": 2},
    {"temperature": 0.0, "frequency_penalty": 0.5, "presence_penalty": 0.4, "repetition_penalty": 1.3},
    {"temperature": 0.9, "seed": 1, "num_logprobs": 0, "num_prompt_logprobs": 1},
    {"temperature": 1.2, "seed": 2, "top_p": 0.8, "frequency_penalty": 1.5},
    {"temperature": 0.8, "seed": 3, "top_k": 20, "min_p": 0.02, "repetition_penalty": 1.5},
    {"temperature": 0.9, "seed": 4, "bias": {5: 4.0, 6: -float("inf")}, "allowed": b"\xfe\xff\xff\xff" * 7},
    {"temperature": 0.9, "seed": 5, "min_tokens": 9, "held_back": EVEN, "bias": dict.fromkeys(EVEN, 2.0)},
]
STOPS = [[], [], [], [], [], list(range(40, 60)), []]
BAD_WORDS = [[first, last] for first in range(0, 199, 2) for last in range(0, 199, 5)]


class Toy:
    """Knows the texts, and guesses every fifth token wrong: as a draft model does, but sooner."""

    def __init__(self, texts: Sequence[list[int]], *, is_right: bool = False) -> None:
        self._texts, self._is_right = texts, is_right

    def propose(self, asks: Sequence[Ask]) -> list[list[int]]:
        return [self._guess(ask.tokens.tolist(), ask.most) for ask in asks]

    def _guess(self, known: list[int], most: int) -> list[int]:
        end = len(known)
        text = next((text for text in self._texts if text[:end] == known), known)
        return [
            token if self._is_right or position % 5 else (token + 1) % 199
            for position, token in enumerate(text[end : end + most], end)
        ]


class Served(msgspec.Struct):
    """What a run gave."""

    texts: dict[int, list[int]]
    logprobs: dict[int, list[TokenLogprobs]]
    scores: dict[int, bytes]
    ends: dict[int, str]
    num_steps: int = 0
    stats: Stats | None = None


def serve(
    executor: Executor,
    prompts: Sequence[list[int]],
    max_tokens: int = NUM_TOKENS,
    bind: Callable[[], Matcher] | None = None,
    bad_words: Sequence[list[int]] = (),
    **changes: Any,
) -> Served:
    """Run the real scheduler over an executor, a prompt for each of SAMPLINGS in turn.

    `bind` returns a matcher for each.
    """
    scheduler = Scheduler(executor.limits)
    found = Served({}, {}, {}, {})
    for number, tokens in enumerate(prompts):
        sampling = Sampling(**(SAMPLINGS[number % len(SAMPLINGS)] | changes))
        new, stops = NewSequence(number, sampling), STOPS[number % len(STOPS)]
        asked = Generate(sequences=[new], prompt=pack_tokens(tokens), max_tokens=max_tokens,
                         stop_token_ids=stops, grammar=Grammar("") if bind else None,
                         bad_words=list(bad_words))  # fmt: skip
        scheduler.add(asked, [bind()] if bind else ())
        found.texts[number], found.logprobs[number], found.scores[number] = [], [], b""
    while scheduler.has_work:
        while (plan := scheduler.schedule()) is not None:
            executor.submit(plan)
            provide_masks(scheduler, executor)
        found.num_steps += 1
        committed = scheduler.commit(executor.collect())
        provide_masks(scheduler, executor)
        for output in committed.outputs:
            number = output.sequence_id
            found.texts[number] += output.tokens
            found.logprobs[number] += output.logprobs
            found.scores[number] += output.prompt_logprobs.logprobs if output.prompt_logprobs else b""
            found.ends[number] = output.finish_reason or ""
        scheduler.check_integrity()
    found.stats = scheduler.stats()
    return found


def provide_masks(scheduler: Scheduler, executor: Executor) -> None:
    if (due := scheduler.pop_masks()) is not None:
        executor.provide_masks(due.step, due.masks)


def speculate(executor: Any, proposer: Proposer) -> None:
    """Have an executor guess as if further tokens of a step cost nothing."""
    executor._speculation = Speculation(executor.limits, proposer)
    for number in range(100):
        executor._speculation._cost.observe(number % 5, 0.01)
    executor._speculation._cost.observe = lambda *_: None


@pytest.fixture
def open_with(make_driver: Callable[..., Any]) -> Open:
    """Open an executor that verifies drafts of 4 tokens: the toy's, if there are texts that it knows."""

    def open_one(path: Path, texts: Sequence[list[int]] = (), **settings: Any) -> LocalExecutor:
        executor: LocalExecutor = make_driver(path, **({"speculative_tokens": 4} | settings)).executor
        if executor.limits.max_draft:
            speculate(executor, Toy(texts) if texts else PromptLookup())
        return executor

    return open_one


PROMPTS = [prompt(5 + 7 * number, number) for number in range(len(SAMPLINGS))]


def whole(found: Served) -> list[list[int]]:
    return [tokens + found.texts[number] for number, tokens in enumerate(PROMPTS)]


@pytest.mark.parametrize(
    "settings",
    [
        {"kernels": "auto"},
        {"kernels": "auto", "dtype": "bfloat16", "weights": "Int8"},
        {"kernels": "torch"},
        {"kernels": "auto", "max_batched_tokens": 13, "kv_cache_bytes": 13 * 16384},
    ],
    ids=["native", "rounded", "torch", "crowded"],
)
def test_texts_and_log_probabilities_are_those_without_drafts(
    make_model: Callable[..., Path], open_with: Open, settings: dict[str, Any]
) -> None:
    path = make_model()
    plain = serve(open_with(path, speculative_tokens=0, **settings), PROMPTS)
    drafted = serve(open_with(path, whole(plain), **settings), PROMPTS)
    assert (drafted.texts, drafted.logprobs) == (plain.texts, plain.logprobs)
    assert (drafted.scores, drafted.ends) == (plain.scores, plain.ends)
    assert plain.ends[5] == "stop"
    assert 1 < len(plain.texts[5]) < NUM_TOKENS
    assert drafted.stats is not None
    assert drafted.stats.num_accepted >= drafted.stats.num_drafted / 2 > 20
    assert drafted.num_steps < plain.num_steps * 0.75


def allow_thirds(tokens: list[int]) -> set[int]:
    return {token for token in range(199) if (token + sum(tokens)) % 3}


def bind_thirds() -> SetMatcher:
    """Allow two thirds of the vocabulary, others after each token."""
    return SetMatcher([], allow_thirds, vocabulary_size=199)


def bind_optimistically() -> SetMatcher:
    return SetMatcher([], allow_thirds, vocabulary_size=199, is_optimistic=True)


@pytest.mark.parametrize(
    ("kernels", "bound"),
    [
        ("auto", {"bind": bind_thirds}),
        ("torch", {"bind": bind_thirds, "bad_words": BAD_WORDS}),
        ("auto", {"bad_words": BAD_WORDS}),
        ("auto", {"bind": bind_optimistically}),
    ],
    ids=["grammar", "both, torch", "bad words", "optimistic"],
)
def test_masked_texts_and_log_probabilities_are_those_without_drafts(
    make_model: Callable[..., Path], open_with: Open, kernels: str, bound: dict[str, Any]
) -> None:
    """The grammar refuses some of the toy's wrong guesses. Penalties and seeds bind as without one."""
    path = make_model()
    plain = serve(open_with(path, speculative_tokens=0, kernels=kernels), PROMPTS, **bound)
    drafted = serve(open_with(path, whole(plain), kernels=kernels), PROMPTS, **bound)
    assert (drafted.texts, drafted.logprobs, drafted.ends) == (plain.texts, plain.logprobs, plain.ends)
    assert plain.texts != serve(open_with(path, speculative_tokens=0, kernels=kernels), PROMPTS).texts
    assert drafted.stats is not None
    assert drafted.stats.num_accepted >= drafted.stats.num_drafted / 2 > 20
    assert drafted.num_steps < plain.num_steps * 0.75


def test_an_answer_of_a_schema_takes_fewer_steps_with_drafts(open_with: Open) -> None:
    """The shipped model, whose guesses come from the answer itself: the keys of its objects are repeated."""
    keys = {"name": {"enum": ["fox", "hen"]}, "is_small": {"type": "boolean"}, "age": {"enum": [1, 2]}}
    animal = {"properties": keys, "required": [*keys], "additionalProperties": False, "type": "object"}
    schema = {"type": "array", "items": animal, "minItems": 6, "maxItems": 6}
    root = LibraryMatcher.build(load_vocabulary(), write_grammar(GrammarKind.SCHEMA, json.dumps(schema)))
    with ThreadPoolExecutor(1) as thread:

        def bind() -> PacedMatcher:
            fork = root.fork(load_tokenizer().end_token_ids, is_forcing=True)
            return PacedMatcher(fork, thread, lambda: None)

        prompts = load_tokenizer().encode_batch(["Animals: ", "A list: "], add_special_tokens=True)
        asked: dict[str, Any] = {"temperature": 0.0}
        # Each token is drawn where its log-probability is wanted, and elsewhere a forced one is not.
        plain = serve(open_with(DEMO_PATH, speculative_tokens=0), prompts, 250, bind, **asked, num_logprobs=0)
        asked["num_logprobs"] = None
        forced = serve(open_with(DEMO_PATH, speculative_tokens=0), prompts, 250, bind, **asked)
        found = serve(open_with(DEMO_PATH), prompts, 250, bind, **asked)
    assert (found.texts, found.ends) == (forced.texts, forced.ends) == (plain.texts, plain.ends)
    assert found.num_steps < forced.num_steps < plain.num_steps * 0.8
    assert set(plain.ends.values()) == {"stop"}
    assert found.stats is not None
    assert found.stats.num_accepted > found.stats.num_drafted / 2
    assert found.num_steps < plain.num_steps * 0.6


def test_lookup_drafts_a_text_that_repeats_itself(make_model: Callable[..., Path], open_with: Open) -> None:
    path, prompts = make_model(), [prompt(9, 1) * 3]
    forced = {"temperature": 0.0, "allowed": None, "bias": {11: 90.0}, "frequency_penalty": 0.0}
    plain = serve(open_with(path, speculative_tokens=0), prompts, **forced)
    found = serve(open_with(path), prompts, **forced)
    assert found.texts == plain.texts == {0: [11] * NUM_TOKENS}
    assert found.num_steps < NUM_TOKENS / 2


def start(slot: int, seed: int, tokens: list[int], **sampling: Any) -> SlotStart:
    return SlotStart(
        slot, seed, pack_tokens(tokens), 0, [[slot]], Sampling(seed=seed, **sampling), num_prompt=5
    )


def step(*rows: Row, number: int = 0, **changes: Any) -> StepPlan:
    return StepPlan(number, **({"released": [], "starts": [], "appends": []} | changes), rows=list(rows))


def test_a_fault_within_a_draft_keeps_the_tokens_before_it(
    make_model: Callable[..., Path], open_with: Open
) -> None:
    plain = serve(open_with(make_model("plain"), speculative_tokens=0), [PROMPTS[0]])
    executor = open_with(make_model("broken"), [PROMPTS[0] + plain.texts[0]])
    executor._speculation = None
    sample = executor._runner.sampler

    def break_third(logits: torch.Tensor, *others: Any) -> Any:
        logits = logits.clone()
        logits[2] = float("nan")
        return sample.draw(logits, *others)

    executor._runner.sampler = sample._replace(draw=break_third)
    right = tuple(plain.texts[0][:4])
    for draft, kept in ((right, 2), ((right[0], right[1] + 1, right[2]), 2)):
        begun = start(0, 0, PROMPTS[0], temperature=0.0, num_logprobs=0)
        executor.submit(step(Row(0, 5, True, draft), starts=[begun]))
        [row] = executor.collect().rows
        assert row.tokens == plain.texts[0][:kept]
        assert len(row.logprobs) == kept
        assert (row.fault is not None) == (draft == right)
        assert row.num_computed == 5 + kept - (row.fault is None)
        executor.submit(step(number=1, released=[0]))
        executor.collect()


@pytest.mark.parametrize("bind", [None, bind_thirds])
def test_the_gpus_path_verifies_drafts_with_and_without_graphs_of_decode(
    make_model: Callable[..., Path], open_with: Open, graphs: Any, bind: Callable[[], Matcher] | None
) -> None:
    """In Triton's interpreter. The toy's guesses are right for the texts that the same kernels draw."""
    path = make_model(num_hidden_layers=1)
    asked: dict[str, Any] = {"max_tokens": 9, "num_prompt_logprobs": None, "bind": bind}
    prompts, settings = PROMPTS[1:3], {"kernels": "torch", "max_sequences": 2}
    plain = serve(open_with(path, speculative_tokens=0, **settings), prompts, **asked)
    texts = [tokens + plain.texts[number] for number, tokens in enumerate(prompts)]
    executor = open_with(path, texts, **settings)
    executor.limits = msgspec.structs.replace(executor.limits, recordable=(StepSize(6),))
    executor.control(Record(StepSize(6)))
    found = serve(executor, prompts, **asked)
    assert found.texts == plain.texts
    assert found.num_steps < plain.num_steps * 0.75
    assert 0 < graphs.num_repeated < found.num_steps - 2  # two do not decode, and the graph is small


@pytest.mark.slow
@pytest.mark.parametrize("bind", [None, bind_thirds])
def test_workers_verify_the_same_drafts(
    make_model: Callable[..., Path],
    open_with: Open,
    start_pool: Callable[..., Any],
    bind: Callable[[], Matcher] | None,
) -> None:
    path = make_model()
    plain = serve(open_with(path, speculative_tokens=0), PROMPTS, bind=bind)
    executor = start_pool(path, 2, speculative_tokens=4)
    speculate(executor, Toy(whole(plain)))
    found = serve(executor, PROMPTS, bind=bind)
    assert found.texts == plain.texts
    assert found.num_steps < plain.num_steps * 0.75


def test_draws_within_drafts_have_the_plain_distribution(
    make_model: Callable[..., Path], open_with: Open
) -> None:
    """Chi-square over the draw beside a guess, and over the draw after a right one."""
    path, num_rounds = make_model(), 40
    plain = serve(open_with(path, speculative_tokens=0), [PROMPTS[0]], num_logprobs=3)
    text = PROMPTS[0] + plain.texts[0]
    executor = open_with(path, [text], max_sequences=32)
    executor._speculation = None
    draws: list[list[int]] = [[], []]
    for number in range(num_rounds):
        seeds = range(32 * number, 32 * (number + 1))
        starts = [start(slot, seed, text[:6], top_k=3) for slot, seed in enumerate(seeds)]
        rows = [Row(slot, 6, True, (text[6],)) for slot in range(32)]
        released = list(range(32)) if number else []
        executor.submit(step(*rows, number=number, released=released, starts=starts))
        for row in executor.collect().rows:
            assert len(row.tokens) == 1 + (row.tokens[0] == text[6])
            for drawn, token in zip(draws, row.tokens, strict=False):
                drawn.append(token)
    assert len(draws[0]) == 32 * num_rounds
    assert len(draws[1]) > 300
    for drawn, top in zip(draws, plain.logprobs[0][1:3], strict=True):
        chances = torch.tensor(top.top_logprobs).exp()
        expected = chances / chances.sum() * len(drawn)
        seen = torch.tensor([drawn.count(token) for token in top.top_tokens])
        assert seen.sum() == len(drawn)
        assert ((seen - expected) ** 2 / expected).sum() < 13.8  # 2 degrees of freedom: 0.999
