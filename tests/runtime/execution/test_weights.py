"""The shipped model with rounded weights."""

from collections.abc import Callable
from typing import Any

import pytest
from tokenizers import Tokenizer

from benchmarks.quality import PUBLISHED, measure, measure_published, read_documents
from stories_training.generator import HELD_OUT_SEED, generate_document
from stories_training.tokens import encode_document
from stories_training.train import FOLDER


def test_rounding_costs_the_shipped_model_little() -> None:
    figures = measure(read_documents(6), "auto")
    assert figures["Int8"]["kl"] < 0.0005
    assert figures["Int4"]["kl"] < 0.004
    assert figures["float32, KV Int8"]["kl"] < 0.0005
    assert figures["KV Int8"]["kl"] < figures["bfloat16"]["kl"] + 0.0005
    for name in ("Int8", "Int4"):
        assert figures[name]["perplexity"] < figures["float32"]["perplexity"] * 1.01
        assert figures[name]["same_first"] > 0.94


def test_serving_a_published_format_adds_little_to_what_its_author_lost() -> None:
    """Beside the checkpoint's own numbers, widened and served in float32."""
    bounds = {"FP8": 0.0005, "INT8": 0.0002, "INT4": 0.0025, "AWQ": 0.0025}
    figures = measure_published(read_documents(3), "auto")
    assert figures.keys() == PUBLISHED.keys()
    for name, found in figures.items():
        assert found["kl"] <= bounds[name.split()[0]], name


@pytest.mark.parametrize("weights", ["Int8", "Int4"])
def test_greedy_tokens_are_among_the_likeliest_of_float32(
    make_driver: Callable[..., Any], weights: str
) -> None:
    tokenizer = Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
    prompt = encode_document(tokenizer, generate_document(HELD_OUT_SEED))[:40]
    rounded = make_driver(FOLDER, weights=weights, max_sequences=2)
    rounded.start(0, prompt)
    for _ in range(10):
        rounded.advance(64)
    exact = make_driver(FOLDER, max_sequences=2)
    for end in range(len(prompt), len(rounded.known[0])):
        exact.start(1, rounded.known[0][:end], num_logprobs=3)
        (result,) = exact.advance(64)
        assert rounded.known[0][end] in result.logprobs[0].top_tokens
        exact.release(1)
