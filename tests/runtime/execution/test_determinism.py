from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from millrace_runtime.engine.scheduler import Scheduler
from millrace_runtime.execution.local import LocalExecutor
from millrace_runtime.protocol.encoding import pack_tokens
from millrace_runtime.protocol.executor import Sleep
from millrace_runtime.protocol.messages import Generate, NewSequence
from millrace_runtime.protocol.sampling import Sampling


def prompt(length: int, seed: int) -> list[int]:
    tokens: list[int] = torch.randint(
        0, 199, (length,), generator=torch.Generator().manual_seed(seed)
    ).tolist()
    return tokens


def run(driver: Any, chunk: int, count: int, slot: int = 0) -> list[tuple[Any, Any]]:
    """Tokens with the exact bits of every log-probability."""
    found: list[tuple[Any, Any]] = []
    while len(found) < count:
        found += [(r.tokens, r.logprobs) for r in driver.advance(chunk) if r.slot == slot and r.tokens]
    return found


@torch.inference_mode()
def poison(driver: Any, blocks: list[int] | None = None) -> None:
    for cache in driver.executor._runner.kv_caches:
        cache.poison(slice(None) if blocks is None else blocks)


@pytest.fixture
def set_threads() -> Iterator[Callable[[int], None]]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("kernels", "num_threads"), [("auto", 1), ("auto", 2), ("torch", 1), ("torch", 2)])
def test_bits_do_not_depend_on_company_chunks_slots_or_threads(  # noqa: PLR0917
    make_model: Callable[..., Path],
    make_driver: Callable[..., Any],
    set_threads: Callable[[int], None],
    dtype: str,
    kernels: str,
    num_threads: int,
) -> None:
    path, tokens = make_model(), prompt(290, 0)
    sampling = {"temperature": 0.8, "seed": 11, "num_logprobs": 199}
    # The torch path promises the same bits for one number of threads, the native path for any.
    set_threads(num_threads if kernels == "torch" else 3 - num_threads)
    alone = make_driver(path, dtype=dtype, kernels=kernels)
    alone.start(0, tokens, **sampling)
    expected = run(alone, 1000, 6)
    set_threads(num_threads)
    for chunk, crowd in ((1000, 7), (16, 0), (100, 10), (7, 3)):
        driver = make_driver(path, dtype=dtype, kernels=kernels)
        for other in range(crowd):
            driver.start(other + 1, prompt(5 + 47 * other, other + 1), temperature=1.0, seed=other)
        driver.start(0, tokens, **sampling)
        assert run(driver, chunk, 6) == expected, (chunk, crowd)


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"weights": "Int8"},
        {"weights": "Int4"},
        {"kv_cache": "Int8"},
        {"kv_cache": "Int8", "dtype": "bfloat16"},
        {"kernels": "torch"},
        {"kernels": "torch", "kv_cache": "Int8"},
    ],
    ids=str,
)
def test_bits_of_a_long_prompt_do_not_depend_on_company_or_chunks(
    make_model: Callable[..., Path], make_driver: Callable[..., Any], changed: dict[str, str]
) -> None:
    """Over 1,024 tokens attention merges several spans of keys; rounded numbers have kernels of their own."""
    path, tokens = make_model(max_position_embeddings=2048), prompt(1130, 0)
    settings: dict[str, Any] = {"max_model_length": 1200, **changed}
    sampling = {"temperature": 0.8, "seed": 11, "num_logprobs": 199}
    alone = make_driver(path, **settings)
    alone.start(0, tokens, **sampling)
    expected = run(alone, 2000, 3)
    for chunk, crowd in ((200, 3), (37, 1)):
        driver = make_driver(path, **settings)
        for other in range(crowd):
            driver.start(other + 1, prompt(5 + 47 * other, other + 1), temperature=1.0, seed=other)
        driver.start(0, tokens, **sampling)
        assert run(driver, chunk, 3) == expected, (chunk, crowd)


MIN_TOKENS = 15


def serve(executor: LocalExecutor, prompts: list[list[int]]) -> tuple[dict[int, list[int]], int]:
    """Run the real scheduler over an executor; every third sequence is aborted on its way.

    Return the texts and how many preemptions there were.
    """
    scheduler = Scheduler(executor.limits)
    for number, tokens in enumerate(prompts):
        sampling = Sampling(
            temperature=0.9,
            seed=number,
            frequency_penalty=0.3,
            repetition_penalty=1.1,
            bias={7: 1.0, 3: -torch.inf},
            min_tokens=MIN_TOKENS,
            held_back=(7, 9),
        )
        scheduler.add(Generate(sequences=[NewSequence(number, sampling)], prompt=pack_tokens(tokens),
                               max_tokens=30 + 3 * number, stop_token_ids=[7, 9]))  # fmt: skip
    texts: dict[int, list[int]] = {number: [] for number in range(len(prompts))}
    while scheduler.has_work:
        while (plan := scheduler.schedule()) is not None:
            executor.submit(plan)
        for output in scheduler.commit(executor.collect()).outputs:
            texts[output.sequence_id] += output.tokens
            if output.sequence_id % 3 == 2 and len(texts[output.sequence_id]) == 3:
                scheduler.abort(output.sequence_id)
        scheduler.check_integrity()
    executor.control(Sleep())  # at rest every slot is empty
    return texts, scheduler.stats().num_preemptions


@pytest.mark.parametrize(
    ("changed", "head_bytes"),
    [
        ({}, 8 * 4),
        ({"kernels": "torch"}, 8 * 4),
        ({"kv_cache": "Int8", "dtype": "bfloat16"}, 8 + 2),
        ({"kernels": "torch", "kv_cache": "Int8"}, 8 + 2),
    ],
    ids=str,
)
def test_texts_do_not_depend_on_depth_slots_or_preemptions(
    make_model: Callable[..., Path],
    make_driver: Callable[..., Any],
    changed: dict[str, str],
    head_bytes: int,
) -> None:
    path, prompts = make_model(), [prompt(3 + 4 * number, number) for number in range(9)]
    settings: dict[str, Any] = {"max_model_length": 96, "max_batched_tokens": 24, **changed}
    expected, _ = serve(make_driver(path, **settings).executor, prompts)
    block = 2 * 2 * 2 * 16 * head_bytes
    crowded = make_driver(path, max_sequences=4, kv_cache_bytes=7 * block, **settings).executor
    crowded.limits = msgspec.structs.replace(crowded.limits, depth=2)
    found, num_preemptions = serve(crowded, prompts)
    assert num_preemptions
    for number, text in expected.items():
        length = 3 if number % 3 == 2 else len(text)
        assert found[number][:length] == text[:length]
        assert not {7, 9} & set(text[:MIN_TOKENS])
        assert 3 not in text
        assert number % 3 == 2 or len(found[number]) == length


def test_a_preempted_sequence_goes_on_bit_for_bit(
    make_model: Callable[..., Path], make_driver: Callable[..., Any]
) -> None:
    path, tokens = make_model(), prompt(40, 3)
    even = range(0, 199, 2)
    sampling = {
        "temperature": 0.9, "seed": 5, "num_logprobs": 5, "frequency_penalty": 0.3, "repetition_penalty": 1.3,
        "bias": dict.fromkeys(even, 1.0), "min_tokens": 7, "held_back": tuple(even),
    }  # fmt: skip
    whole = make_driver(path)
    whole.start(0, tokens, **sampling)
    expected = run(whole, 1000, 10)
    driver = make_driver(path)
    driver.start(0, tokens, **sampling)
    begun = run(driver, 1000, 4)
    known = driver.release(0)
    driver.start(2, prompt(30, 9))
    driver.advance(100)
    driver.start(5, known, num_prompt=len(tokens), **sampling)
    assert begun + run(driver, 9, 6, slot=5) == expected
    assert [token % 2 for [token], _ in expected[:7]] == [1] * 7
    assert 0 in [token % 2 for [token], _ in expected[7:]]


@pytest.mark.parametrize("kv_cache", ["Model", "Int8"])
def test_blocks_of_another_with_nan_in_them_do_no_harm(
    make_model: Callable[..., Path], make_driver: Callable[..., Any], kv_cache: str
) -> None:
    path, tokens = make_model(), prompt(21, 4)
    clean = make_driver(path, kv_cache=kv_cache)
    clean.start(0, tokens, num_logprobs=3)
    expected = run(clean, 100, 3)
    driver = make_driver(path, kv_cache=kv_cache)
    poison(driver)
    driver.start(0, tokens, num_logprobs=3)
    assert run(driver, 100, 3) == expected


@pytest.mark.parametrize("kv_cache", ["Model", "Int8"])
def test_a_fault_is_one_rows(
    make_model: Callable[..., Path], make_driver: Callable[..., Any], kv_cache: str
) -> None:
    path, tokens = make_model(), prompt(21, 4)
    clean = make_driver(path, kv_cache=kv_cache)
    clean.start(0, tokens, num_logprobs=3)
    expected = run(clean, 100, 3)
    driver = make_driver(path, kv_cache=kv_cache)
    driver.start(0, tokens, num_logprobs=3)
    driver.start(1, prompt(30, 8))
    driver.advance(100)
    poison(driver, driver.held[1][0])
    ours, theirs = driver.advance(100)
    assert (ours.tokens, ours.logprobs) == expected[1]
    assert theirs.tokens == []
    assert "not finite" in theirs.fault
