"""gpt-oss by its published config.json: its shape, the sizes of what is widened, and refusals."""

from dataclasses import replace
from typing import Any

import pytest

from millrace_fit.errors import ArchitectureError
from millrace_fit.facts import MAX_BYTES, ModelFacts, find_facts
from millrace_fit.families.registry import declare
from millrace_fit.modules import Role, list_layer
from millrace_fit.quantization.methods import read_quantization
from millrace_fit.rotary import YarnScaling
from millrace_fit.settings import Settings
from millrace_fit.shape import AttentionShape, ExpertsShape
from millrace_fit.shard import Shard
from millrace_fit.tensors import assume_tensors

SILENT: dict[str, Any] = {
    "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "vocab_size": 201088,
    "hidden_size": 2880, "intermediate_size": 2880, "num_hidden_layers": 24, "num_attention_heads": 64,
}  # fmt: skip
LISTED = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
MXFP4: dict[str, Any] = {"quant_method": "mxfp4", "modules_to_not_convert": LISTED}
PUBLISHED: dict[str, Any] = SILENT | {
    "attention_bias": True, "experts_per_token": 4, "head_dim": 64, "hidden_act": "silu",
    "initial_context_length": 4096, "layer_types": ["sliding_attention", "full_attention"] * 12,
    "max_position_embeddings": 131072, "num_experts_per_tok": 4, "num_key_value_heads": 8,
    "num_local_experts": 32, "output_router_logits": False, "quantization_config": MXFP4,
    "rms_norm_eps": 1e-05, "rope_theta": 150000, "sliding_window": 128, "swiglu_limit": 7.0,
    "rope_scaling": {
        "beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "original_max_position_embeddings": 4096,
        "rope_type": "yarn", "truncate": False,
    },
}  # fmt: skip
"""Of the model of 20 billion weights."""


def test_the_published_config_is_read_and_a_silent_one_means_the_same() -> None:
    shape = declare(PUBLISHED).shape
    far = AttentionShape(64, 8, 64, has_bias=True, has_output_bias=True, has_sinks=True)
    near, other = shape.kinds
    experts = ExpertsShape(32, 4, 2880, is_normalised=True, has_bias=True, gate_limit=7.0)
    assert (near.attention, other.attention) == (replace(far, window=128), far)
    assert (near.mlp, other.mlp) == (experts, experts)
    assert shape.scaling == YarnScaling(32.0, 32.0, 1.0, 4096, 1.3465735902799727, is_truncated=False)
    assert (shape.theta, shape.epsilon, shape.max_length) == (150000.0, 1e-5, 131072)
    assert (shape.is_tied, [(run.kinds, run.count) for run in shape.runs]) == (False, [((0, 1), 12)])
    assert declare(SILENT | {"num_local_experts": 32}).shape == shape


@pytest.mark.parametrize("layers", [24, 36])
def test_what_is_told_counts_the_widened_form_in_a_small_line(layers: int) -> None:
    config = PUBLISHED | {"num_hidden_layers": layers, "layer_types": None}
    facts, twin = (
        find_facts(one, assume_tensors(one, {}) or {})
        for one in (
            config | {"dtype": "bfloat16"},
            config | {"dtype": "bfloat16", "quantization_config": None},
        )
    )
    assert (facts.fault, twin.fault, facts.kinds) == (None, None, "")
    assert facts.stored["MXFP4"] == 3 * layers * 32 * 2880 * 2880
    assert facts.num_parameters == twin.num_parameters
    assert len(facts.to_json().encode()) < MAX_BYTES
    assert ModelFacts.from_json(facts.to_json()) == facts
    for settings in (Settings(tensor_parallel=2), Settings(device="cpu", weights="Int4")):
        assert facts.weigh(settings).all_bytes == twin.weigh(settings).all_bytes


@pytest.mark.parametrize(("count", "index", "heads"), [(2, 1, (32, 64)), (16, 3, (12, 16))])
def test_workers_have_the_sinks_of_their_query_heads(count: int, index: int, heads: tuple[int, int]) -> None:
    shape = declare(PUBLISHED).shape
    modules = {one.role: one for one in list_layer(shape, shape.kinds[0])}
    shard = Shard(index, count)
    cut = modules[Role.SINKS].parts[0].rows.cut(shard)
    assert (cut.total, cut.begin, cut.end) == (64, *heads)
    assert modules[Role.QKV].parts[0].rows.cut(shard) == cut.times(64)


def test_lists_of_the_form_leave_experts_out_by_name() -> None:
    listed = MXFP4 | {"modules_to_not_convert": [*LISTED, "model.layers.3.mlp.experts"]}
    found = read_quantization({"quantization_config": listed})
    names = [f"model.layers.{layer}.mlp.experts.31.gate_proj" for layer in (2, 3)]
    assert [found.find_scheme(name) is None for name in names] == [False, True]
    assert all(found.find_scheme(one) is None for one in ("model.layers.0.self_attn.q_proj", "lm_head"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"swiglu_alpha": 1.0}, r"swiglu_alpha 1.0; only 1.702 is supported"),
        ({"swiglu_limit": 0.0}, "swiglu_limit 0.0; it must be above 0"),
        ({"experts_per_token": 2}, "experts_per_token 2; it must equal num_experts_per_tok"),
        (
            {"num_experts_per_tok": None, "experts_per_token": 33},
            "num_experts_per_tok 33; it must be at most 32",
        ),
        ({"sliding_window": None}, "sliding_attention in layer_types and no sliding_window"),
        ({"sliding_window": None, "layer_types": None}, "sliding_window None"),
        ({"layer_types": ["chunked_attention"] * 24}, "'chunked_attention' in layer_types"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": 3}}, "list of names"),
    ],
)
def test_what_is_not_understood_is_refused_by_name(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ArchitectureError, match=message):
        declare(PUBLISHED | change)


def test_blocks_that_inputs_do_not_fill_are_refused() -> None:
    odd = PUBLISHED | {"hidden_size": 2896}
    fault = find_facts(odd, assume_tensors(odd | {"dtype": "bfloat16"}, {}) or {}).fault
    assert fault is not None
    assert "2896 inputs, which are no multiple of 32" in fault
