"""What is told of a model, whatever its author has written: one line that a termination message can hold."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace_fetch.cli.local_model import write_resolved
from millrace_fetch.plan.head import ModelHead, Resolved, describe_head
from millrace_fit.errors import FactsError
from millrace_fit.facts import MAX_FAULT, MAX_NAME, MAX_TYPES, ModelFacts, find_facts, shorten
from millrace_fit.fields import MAX_COUNT, MOST_LAYERS
from millrace_fit.files.headers import ITEM_BITS, StoredTensor
from testing.checkpoints.models import LLAMA_8B, stored_of

MOST_BYTES = 2000
"""Of a message: the containers of a pod share 12 KiB, so that six of them have 2 KiB each."""
WIDE = "\N{GRINNING FACE}"


def make_largest(text: str) -> Resolved:
    """What is told of a model whose author writes this text and large numbers wherever one can be written."""
    counts = {name: MAX_COUNT for name, value in LLAMA_8B.items() if type(value) is int}
    rotary = {"factor": 1e15 / 3, "low_freq_factor": 1 / 3, "high_freq_factor": 2 / 3}
    rotary |= {"rope_type": "llama3", "original_max_position_embeddings": MAX_COUNT}
    counts["num_hidden_layers"] = MOST_LAYERS
    config = LLAMA_8B | counts | {"head_dim": 2, "rope_scaling": rotary, "rms_norm_eps": 1e-300 / 3}
    tensors = {text: StoredTensor("F32", (MAX_COUNT,))}
    facts = find_facts(config, tensors)
    assert facts.shape is not None
    stored = dict.fromkeys(list(ITEM_BITS)[:MAX_TYPES], MAX_COUNT)
    fault = shorten(f"the model {text}")
    return Resolved(f"sha256:{'a' * 64}", 10_000, 2**60, replace(facts, stored=stored, fault=fault))


ODD = st.sampled_from([WIDE, "\N{CJK UNIFIED IDEOGRAPH-6A21}", *'"\\', "\ud800"])


@settings(max_examples=50)
@given(st.text(max_size=500) | st.text(alphabet=ODD, min_size=300))
def test_what_is_told_of_any_model_fits_a_termination_message(text: str) -> None:
    told = make_largest(text)
    assert len(told.render().encode()) < MOST_BYTES
    other = find_facts({"architectures": [text]}, {})
    assert len(other.to_json().encode()) < MOST_BYTES
    assert ModelFacts.from_json(other.to_json()) == other
    assert ModelFacts.from_json(json.dumps(json.loads(told.render())["facts"])) == told.facts


@pytest.mark.parametrize("char", [WIDE, "模", '"', "\\", "x"])
def test_a_text_is_cut_by_its_bytes_and_stays_as_it_was_cut(char: str) -> None:
    cut = shorten(char * 1000)
    assert cut.endswith("…")
    assert MAX_FAULT - 5 < len(json.dumps(cut, ensure_ascii=False).encode()) - 2 <= MAX_FAULT
    assert shorten(cut) == cut
    assert shorten(char * (MAX_NAME // 4), MAX_NAME) == char * (MAX_NAME // 4)


def test_the_file_has_the_bytes_that_are_counted_in_any_locale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LC_ALL", "C")
    facts = describe_head(ModelHead("1", {"architectures": [WIDE * 300]}, {}, frozenset(), 0))
    path = tmp_path / "told"
    told = Resolved("1", 0, None, facts)
    write_resolved(told, path)
    assert path.read_bytes() == told.render().encode()


def test_a_number_that_no_model_has_is_refused_by_its_name() -> None:
    facts = find_facts(LLAMA_8B | {"vocab_size": 10**4000}, stored_of(LLAMA_8B))
    assert facts.fault is not None
    assert facts.fault.startswith("config.json has vocab_size 1000")
    assert facts.shape is None


OLDER = {
    "vocabulary_size": 128256, "width": 4096, "mlp_width": 14336, "num_layers": 32, "num_heads": 32,
    "num_kv_heads": 8, "head_dim": 128, "epsilon": 1e-05, "theta": 500000.0,
    "scaling": {"factor": 8.0, "low_frequency_factor": 1.0, "high_frequency_factor": 4.0,
                "original_length": 8192},
    "max_length": 131072, "window": None, "is_tied": False, "has_qkv_bias": False, "has_output_bias": False,
    "has_mlp_bias": False,
}  # fmt: skip
"""The shape as versions before `DecoderShape` wrote it."""


def test_facts_of_older_and_newer_versions_are_read() -> None:
    facts = find_facts(LLAMA_8B, stored_of(LLAMA_8B))
    told = json.loads(facts.to_json())
    assert ModelFacts.from_json(json.dumps(told | {"shape": OLDER})) == facts
    newer = json.loads(facts.to_json())
    newer["shape"]["kinds"][0]["attention"] |= {"has_caps": True}
    newer["shape"] |= {"logit_cap": 30.0}
    assert ModelFacts.from_json(json.dumps(newer | {"license": "MIT"})) == facts


@pytest.mark.parametrize(
    "change",
    [
        {"kinds": []},
        {"runs": []},
        {"runs": [[[1], 32]]},
        {"runs": [[[0], 10**6]]},
        {"kinds": [{"attention": {"num_heads": 3, "num_kv_heads": 2, "head_dim": 8}, "mlp": {"width": 1}}]},
        {"kinds": [{"attention": {"num_heads": 2, "num_kv_heads": 2, "head_dim": 8}, "mlp": {}}]},
        {"is_tied": "no"},
        {"theta": None},
    ],
)
def test_facts_that_no_version_writes_are_refused(change: dict[str, object]) -> None:
    told = json.loads(find_facts(LLAMA_8B, stored_of(LLAMA_8B)).to_json())
    with pytest.raises(FactsError):
        ModelFacts.from_json(json.dumps(told | {"shape": told["shape"] | change}))
