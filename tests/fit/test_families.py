"""A config.json as the families read it: defaults as in transformers, and refusals by the field's name."""

from dataclasses import replace
from typing import Any

import pytest

from millrace_fit.errors import ArchitectureError
from millrace_fit.families.registry import declare
from millrace_fit.rotary import LinearScaling, Llama3Scaling, YarnScaling
from millrace_fit.shape import AttentionShape, DecoderShape, LayerShape, MlpShape, Run, describe_layers
from tests.fit.raw_configs import FOUR_KV_HEADS, LLAMA, RAW, attention_of

MISTRAL, QWEN2 = "MistralForCausalLM", "Qwen2ForCausalLM"
WINDOWED = {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 0}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LONGROPE = {"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [1.0] * 8}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}


def parse(*changes: dict[str, Any], family: str = LLAMA) -> DecoderShape:
    raw = RAW | {"architectures": [family]}
    for one in changes:
        raw |= one
    return declare(raw).shape


def test_what_is_left_out_has_the_usual_default() -> None:
    shape = parse()
    assert (shape.theta, shape.scaling, shape.is_tied, shape.num_layers) == (10000.0, None, False, 2)
    assert attention_of(shape) == AttentionShape(4, 4, 16)


@pytest.mark.parametrize(("family", "length"), [(LLAMA, 2048), (MISTRAL, 131072), (QWEN2, 32768)])
def test_a_length_left_out_is_what_transformers_takes_it_for(family: str, length: int) -> None:
    assert parse({"max_position_embeddings": None}, FOUR_KV_HEADS, family=family).max_length == length


def test_qwens_million_tokens_need_an_attention_that_is_not_served() -> None:
    chunks = {"dual_chunk_attention_config": {"original_max_position_embeddings": 256, "chunk_size": 128}}
    assert parse(FOUR_KV_HEADS, chunks, family=QWEN2).max_length == 256


def test_both_spellings_of_rotary_scaling_are_read() -> None:
    old = parse({"rope_theta": 5e5, "rope_scaling": LLAMA3})
    new = parse({"rope_parameters": LLAMA3 | {"rope_theta": 5e5}})
    assert old == new
    assert old.scaling == Llama3Scaling(8.0, 1.0, 4.0, 64)
    assert parse({"rope_scaling": {"type": "linear", "factor": 2}}).scaling == LinearScaling(2.0)


@pytest.mark.parametrize(
    ("scaling", "expected"),
    [({"type": "linear", "factor": 2}, (7e4, LinearScaling(2.0))), ({}, (5e5, None)), (None, (5e5, None))],
)
def test_the_older_spelling_alone_counts_where_both_are_there(
    scaling: dict[str, Any] | None, expected: tuple[float, LinearScaling | None]
) -> None:
    rope = {"rope_type": "default", "rope_theta": 5e5}
    shape = parse({"rope_theta": 7e4, "rope_parameters": rope, "rope_scaling": scaling})
    assert (shape.theta, shape.scaling) == expected


@pytest.mark.parametrize(
    ("changes", "scaling", "length"),
    [
        ({}, YarnScaling(4.0, 32.0, 1.0, 64, 1.1386294361119891), 512),
        ({"factor": 16.0}, YarnScaling(16.0, 32.0, 1.0, 64, 1.2772588722239782), 1024),
        ({"attention_factor": 1.5, "truncate": False}, YarnScaling(4.0, 32.0, 1.0, 64, 1.5, False), 512),
        ({"attention_factor": 1.5, "truncate": None}, YarnScaling(4.0, 32.0, 1.0, 64, 1.5, False), 512),
        ({"llama_4_scaling_beta": 0.0}, YarnScaling(4.0, 32.0, 1.0, 64, 1.1386294361119891), 512),
        ({"llama_4_scaling_beta": 0.1}, YarnScaling(4.0, 32.0, 1.0, 64, 1.1386294361119891), 64),
        ({"beta_fast": 8, "beta_slow": None, "mscale": 1.0, "mscale_all_dim": 1.0},
         YarnScaling(4.0, 8.0, 1.0, 64, 1.0), 512),
        ({"attn_factor": 0.8782488562869419, "finetuned": True}, YarnScaling(4.0, 32.0, 1.0, 64, 1.0), 512),
        ({"original_max_position_embeddings": None},
         YarnScaling(4.0, 32.0, 1.0, 512, 1.1386294361119891), 2048),
    ],
)  # fmt: skip
def test_yarn_is_read_with_its_defaults_and_lengthens_the_model(
    changes: dict[str, Any], scaling: YarnScaling, length: int
) -> None:
    shape = parse({"rope_scaling": YARN | changes})
    assert (shape.scaling, shape.max_length) == (scaling, length)


@pytest.mark.parametrize("family", [LLAMA, QWEN2])
def test_a_flag_may_be_null(family: str) -> None:
    names = ("attention_bias", "mlp_bias", "tie_word_embeddings", "use_sliding_window", "rope_theta")
    silent = parse(FOUR_KV_HEADS, family=family)
    assert parse(FOUR_KV_HEADS, dict.fromkeys(names), family=family) == silent


@pytest.mark.parametrize(
    ("family", "biases"),
    [(LLAMA, (True, True, True)), (MISTRAL, (False, False, False)), (QWEN2, (True, False, False))],
)
def test_flags_of_biases_are_llamas_alone_and_qwen2_has_three_without(
    family: str, biases: tuple[bool, bool, bool]
) -> None:
    flags = {"attention_bias": True, "mlp_bias": True}
    found = []
    for shape in (parse(FOUR_KV_HEADS, flags, family=family), parse(FOUR_KV_HEADS, family=family)):
        layer = next(shape.layers)
        assert isinstance(layer.mlp, MlpShape)
        found.append((layer.attention.has_bias, layer.attention.has_output_bias, layer.mlp.has_bias))
    assert found == [biases, (family == QWEN2, False, False)]


@pytest.mark.parametrize(("family", "num_kv_heads"), [(LLAMA, 64), (MISTRAL, 8), (QWEN2, 32)])
def test_kv_heads_left_out_are_what_transformers_takes_them_for(family: str, num_kv_heads: int) -> None:
    heads = {"num_attention_heads": 64, "head_dim": 2}
    assert attention_of(parse(heads, family=family)).num_kv_heads == num_kv_heads
    named = parse(heads, {"num_key_value_heads": None}, family=family)
    assert attention_of(named).num_kv_heads == 64


@pytest.mark.parametrize(
    ("family", "changes", "windows"),
    [
        (LLAMA, {"sliding_window": None, "use_sliding_window": True}, [None, None]),
        (MISTRAL, {}, [None, None]),  # longer than the model, so never reached
        (MISTRAL, {"max_position_embeddings": None}, [4096, 4096]),
        (MISTRAL, {"sliding_window": 64, "layer_types": ["full_attention", "sliding_attention"]}, [None, 64]),
        (MISTRAL, {"sliding_window": None}, [None, None]),
        (MISTRAL, {"sliding_window": 64, "use_sliding_window": False}, [64, 64]),
        (QWEN2, {"sliding_window": 64}, [None, None]),
        (QWEN2, {"use_sliding_window": True}, [None, None]),
        (
            QWEN2,
            {"use_sliding_window": True, "num_hidden_layers": 29, "sliding_window": 64},
            [*[None] * 28, 64],
        ),
        (QWEN2, {"layer_types": None}, [None, None]),
        (QWEN2, {"use_sliding_window": True, "max_window_layers": 2}, [None, None]),
        (QWEN2, WINDOWED | {"max_window_layers": 1}, [None, 64]),
        (QWEN2, WINDOWED, [64, 64]),
        (QWEN2, WINDOWED | {"layer_types": ["full_attention"] * 2}, [None, None]),
        (QWEN2, WINDOWED | {"layer_types": ["full_attention", "sliding_attention"]}, [None, 64]),
        (QWEN2, WINDOWED | {"layer_types": ["sliding_attention"] * 2}, [64, 64]),
        (QWEN2, {"use_sliding_window": True, "sliding_window": None}, [None, None]),
    ],
)
def test_each_layer_has_the_window_that_transformers_gives_it(
    family: str, changes: dict[str, Any], windows: list[int | None]
) -> None:
    shape = parse(FOUR_KV_HEADS, changes, family=family)
    assert [layer.attention.window for layer in shape.layers] == windows
    assert set(shape.windows) == set(windows)


def test_dynamic_rotary_is_plain_up_to_the_models_length_and_linear_may_name_its_own() -> None:
    assert parse({"rope_scaling": {"type": "dynamic", "factor": 2.0}}) == parse()
    long = {"rope_scaling": {"type": "linear", "factor": 4.0}, "max_sequence_length": 1024}
    assert parse(long).max_length == 1024
    assert parse(long | {"max_sequence_length": 4096}).max_length == 2048
    assert parse({"max_sequence_length": 1024}).max_length == 512


def test_what_says_nothing_is_no_error() -> None:
    silent = {"quantization_config": None, "rope_scaling": None, "partial_rotary_factor": 1.0}
    silent["rope_parameters"] = {"rope_type": "default", "rope_theta": 10000, "attention_factor": None}
    assert parse(silent) == parse()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vocab_size": None}, "vocab_size None"),
        ({"hidden_size": "64"}, "hidden_size '64'"),
        ({"num_hidden_layers": 0}, "at least 1"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers 1000000000; it must be at most 1000"),
        ({"num_key_value_heads": 3}, "must be a multiple"),
        ({"head_dim": 7}, "even"),
        ({"hidden_act": "gelu"}, 'only "silu"'),
        ({"hidden_act": None}, "hidden_act None"),
        ({"rope_scaling": {"type": "dynamic", "factor": 1.0, "alpha": 1000.0}}, "alpha 1000.0"),
        ({"rope_scaling": {"rope_type": "longrope", "factor": 2}}, "short_factor None; it must be a list"),
        (
            {"rope_scaling": LONGROPE | {"long_factor": [1.0] * 7}},
            "long_factor of 7 numbers, and heads turn 16",
        ),
        ({"rope_scaling": {"rope_type": "proportional"}}, 'rope_type "proportional"'),
        ({"rope_scaling": LLAMA3 | {"factor": 0}}, "factor 0"),
        ({"rope_scaling": YARN | {"beta_slow": 64}}, "beta_fast 32.0 and beta_slow 64.0"),
        ({"rope_scaling": YARN | {"long_factor": [1.0]}}, r"long_factor \[1.0\]"),
        ({"rope_theta": "big"}, "must be a number"),
        ({"quantization_config": {}}, "unquantised"),
        ({"sliding_window": 4096}, "sliding_window 4096; a Llama has no window"),
        (
            {"layer_types": ["full_attention", "sliding_attention"]},
            "sliding_attention in layer_types, and the layers",
        ),
        ({"layer_types": ["linear_attention"] * 2}, "'linear_attention' in layer_types"),
        ({"rope_theta": 10**400}, "above 0 and finite"),
        ({"rope_scaling": "linear"}, "rotary scaling 'linear'"),
        ({"rope_scaling": LLAMA3 | {"low_freq_factor": 4.0}}, "the first must be lower"),
        ({"rope_scaling": LLAMA3 | {"attention_factor": 2.0}}, "attention_factor 2.0"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "full_attention"),
        ({"rope_scaling": {"type": "linear", "factor": 2, "partial_rotary_factor": 0.5}}, "only 1 is"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5"),
        ({"tie_word_embeddings": "false"}, "tie_word_embeddings 'false'; it must be true or false"),
        ({"attention_bias": "no"}, "attention_bias 'no'"),
        ({"mlp_bias": 0}, "mlp_bias 0"),
    ],
)
def test_what_is_not_supported_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ArchitectureError, match=message):
        parse(changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_window_layers": -1}, "max_window_layers -1; it must be a whole number of at least 0"),
        ({"layer_types": "full_attention"}, "layer_types 'full_attention'; it must be a list"),
        ({"layer_types": ["full_attention"]}, "layer_types of 1 items"),
        ({"layer_types": ["linear_attention"] * 2}, "'linear_attention' in layer_types"),
        ({"sliding_window": "4096"}, "sliding_window '4096'"),
        ({"use_sliding_window": "false"}, "use_sliding_window 'false'"),
        ({"use_sliding_window": False, "layer_types": ["sliding_attention"] * 2}, "no sliding_window in use"),
    ],
)
def test_what_says_nothing_of_windows_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ArchitectureError, match=message):
        parse(FOUR_KV_HEADS, WINDOWED, changes, family=QWEN2)


@pytest.mark.parametrize("family", ["Qwen2MoeForCausalLM", "SmolLM3ForCausalLM"])
def test_windows_that_are_named_and_have_no_length_are_refused(family: str) -> None:
    with pytest.raises(ArchitectureError, match="no sliding_window in use"):
        parse(FOUR_KV_HEADS, {"sliding_window": 64, "layer_types": ["sliding_attention"] * 2}, family=family)


@pytest.mark.parametrize("names", [["GPT2LMHeadModel"], [], None])
def test_an_unknown_architecture_names_the_page_of_the_supported(names: Any) -> None:
    with pytest.raises(ArchitectureError, match="lists what is served"):
        declare(RAW | {"architectures": names})


@pytest.mark.parametrize("names", ["LlamaForCausalLM", 5, [["LlamaForCausalLM"]]])
def test_architectures_that_are_no_list_of_names_are_refused(names: Any) -> None:
    with pytest.raises(ArchitectureError, match="must be a list of names"):
        declare(RAW | {"architectures": names})


LAYER = LayerShape(AttentionShape(4, 4, 16), MlpShape(32))


@pytest.mark.parametrize(
    ("numbers", "runs"),
    [
        ([0] * 80, (Run((0,), 80),)),
        ([0, 0, 0, 1] * 9, (Run((0, 0, 0, 1), 9),)),
        ([0, 1, 0, 1, 0], (Run((0, 1), 2), Run((0,), 1))),
        ([0, 0] + [1, 1, 1, 2] * 11, (Run((0,), 2), Run((1, 1, 1, 2), 11))),
        ([0, 1, 1, 2, 0], (Run((0,), 1), Run((1,), 2), Run((2, 0), 1))),
        ([0] * 28 + [1] * 4, (Run((0,), 28), Run((1,), 4))),
    ],
)
def test_layers_are_written_as_what_repeats(numbers: list[int], runs: tuple[Run, ...]) -> None:
    kinds = [LAYER, *(replace(LAYER, attention=AttentionShape(4, 4, 16, window=size)) for size in (8, 9))]
    layers = [kinds[number] for number in numbers]
    assert describe_layers(layers) == (tuple(kinds[: max(numbers) + 1]), runs)


def test_layers_without_a_pattern_are_refused() -> None:
    layers = [LayerShape(AttentionShape(4, 4, 16), MlpShape(32 * (1 + number))) for number in range(20)]
    with pytest.raises(ArchitectureError, match="layers of 20 kinds without a pattern"):
        describe_layers(layers)
