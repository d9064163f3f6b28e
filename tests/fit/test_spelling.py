"""Tensors under the other names that tools give them."""

import re
from typing import Any

import pytest

from millrace_fit.facts import find_facts
from millrace_fit.files.headers import StoredTensor
from millrace_fit.tensors import assume_tensors
from testing.checkpoints.models import MEDIUM, stored_of

STORED = stored_of(MEDIUM)
TEXT = {name: value for name, value in MEDIUM.items() if name not in ("architectures", "model_type")}


def rename(stored: dict[str, StoredTensor], old: str, new: str) -> dict[str, StoredTensor]:
    return {name.replace(old, new, 1) if name.startswith(old) else name: one for name, one in stored.items()}


def of(architecture: str) -> dict[str, Any]:
    return {"architectures": [architecture], "dtype": "bfloat16", "text_config": TEXT}


@pytest.mark.parametrize(
    ("config", "beginnings"),
    [
        (MEDIUM, {"model.": ""}),
        (of("Qwen2_5_VLForConditionalGeneration"), {"model.": "model.language_model."}),
        (of("Qwen2VLForConditionalGeneration"), {"model.": "language_model."}),
        (of("Qwen3VLForConditionalGeneration"), {"model.language_model.": "language_model."}),
        (
            of("Mistral3ForConditionalGeneration"),
            {"language_model.model.": "model.language_model.", "language_model.lm_head.": "lm_head."},
        ),
        (
            of("LlavaNextForConditionalGeneration"),
            {"language_model.model.": "model.language_model.", "language_model.lm_head.": "lm_head."},
        ),
    ],
    ids=["flat", "2.5 vl", "2 vl, base", "3 vl, base", "mistral 3", "llava"],
)
def test_the_headers_say_which_names_a_file_has(config: dict[str, Any], beginnings: dict[str, str]) -> None:
    declared = assume_tensors(config, {})
    assert declared is not None
    stored = declared
    for old, new in beginnings.items():
        stored = rename(stored, old, new)
    assert stored != declared
    facts = find_facts(config, stored)
    assert facts.fault is None
    assert facts == find_facts(config, declared)
    seen = dict(list(stored.items())[:3])
    assumed = assume_tensors(config, seen) or {}
    assert {name: one._replace(place=None) for name, one in assumed.items()} == declared


def test_a_file_with_both_names_is_refused() -> None:
    both = STORED | rename(STORED, "model.", "")
    assert "would be left out" in str(find_facts(MEDIUM, both).fault)


@pytest.mark.parametrize(
    ("stored", "words"),
    [
        (rename(STORED, "model.", "transformer."), r"name their tensors in another way \(transformer\."),
        (rename(STORED, "lm_head.", "score."), r"lm_head\.weight: this is an embedding or classifying model"),
        (rename(STORED, "model.norm.", "model.ln."), "the model is incomplete"),
    ],
)
def test_what_is_missing_tells_why(stored: dict[str, StoredTensor], words: str) -> None:
    assert re.search(words, str(find_facts(MEDIUM, stored).fault))
