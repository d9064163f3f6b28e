"""What a quantization_config says of a model's matrices, as the tools that write it mean it."""

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace_fit.errors import ArchitectureError
from millrace_fit.quantization.methods import READERS, REFUSED, read_quantization
from millrace_fit.quantization.rules import NOT_QUANTIZED, Quantization
from millrace_fit.quantization.scheme import Kind, Packing, Scheme
from tests.fit import quantized
from tests.fit.quantized import AWQ, FP8_BLOCK, GPTQ, MODELOPT, W4A16, W8A8, compressed, weights

DOWN, UP = "model.layers.1.mlp.down_proj", "model.layers.0.mlp.up_proj"
GATE, ROUTER, HEAD = "model.layers.0.mlp.gate_proj", "model.layers.0.mlp.gate", "lm_head"
NAMES = (DOWN, UP, GATE, ROUTER, HEAD)
FP8, INT4 = Scheme(Kind.FP8, Packing.PLAIN), Scheme(Kind.INT4, Packing.GPTQ, group=128)
MIXED = {
    "quant_method": "compressed-tensors",
    "format": "mixed-precision",
    "config_groups": {
        "a": {"targets": ["Linear"], "weights": weights(8, "float", "channel"), "format": "float-quantized"},
        "b": {"targets": ["re:.*down_proj$"], "weights": weights(4, "int", "channel")},
        "c": {"targets": [UP], "weights": weights(8, "int", "tensor"), "format": "naive-quantized"},
        "d": {"targets": ["LlamaAttention"], "weights": None},
    },
    "ignore": ["re:.*lm_head", ROUTER],
}


def read(config: Any) -> Quantization:
    return read_quantization({"quantization_config": config})


@pytest.mark.parametrize(
    ("config", "scheme"),
    [
        (quantized.FP8_DYNAMIC, FP8),
        (compressed("float-quantized", weights(8, "float", "tensor")), Scheme(Kind.FP8, Packing.PLAIN, None)),
        (
            compressed("float-quantized", weights(8, "float", "block", block_structure="128x64")),
            Scheme(Kind.FP8, Packing.PLAIN, 128, 64),
        ),
        (W8A8, Scheme(Kind.INT8, Packing.PLAIN)),
        (compressed("pack-quantized", weights(8, "int", "channel")), Scheme(Kind.INT8, Packing.COMPRESSED)),
        (W4A16, Scheme(Kind.INT4, Packing.COMPRESSED, group=128)),
        (
            compressed(
                "pack-quantized", weights(4, "int", None, group_size=64, symmetric=False, actorder="GROUP")
            ),
            Scheme(Kind.INT4, Packing.COMPRESSED, group=64, has_zeros=True, is_ordered=True),
        ),
        (FP8_BLOCK, Scheme(Kind.FP8, Packing.PLAIN, 128, 128, scale="weight_scale_inv")),
        (
            FP8_BLOCK | {"weight_block_size": None},
            Scheme(Kind.FP8, Packing.PLAIN, None, scale="weight_scale_inv"),
        ),
        ({"quant_method": "fp8", "activation_scheme": "static"}, Scheme(Kind.FP8, Packing.PLAIN, None)),
        ({"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}, FP8),
        (MODELOPT, Scheme(Kind.FP8, Packing.PLAIN, None)),
        (MODELOPT | {"quant_algo": "fp8_pb_wo"}, Scheme(Kind.FP8, Packing.PLAIN, 128, 128)),
        ({"quant_method": "modelopt", "quantization": MODELOPT}, Scheme(Kind.FP8, Packing.PLAIN, None)),
        (AWQ, Scheme(Kind.INT4, Packing.AWQ, group=128, has_zeros=True)),
        (AWQ | {"group_size": -1, "zero_point": False}, Scheme(Kind.INT4, Packing.AWQ, has_zeros=True)),
        (GPTQ, INT4),
        (
            GPTQ | {"checkpoint_format": "gptq_v2", "sym": False, "desc_act": True, "group_size": 32},
            Scheme(Kind.INT4, Packing.GPTQ_V2, group=32, has_zeros=True, is_ordered=True),
        ),
    ],
)
def test_each_method_has_its_scheme_in_layers_and_none_in_the_head(config: Any, scheme: Scheme) -> None:
    found = read(config)
    assert (found.find_scheme(DOWN), found.find_scheme(HEAD)) == (scheme, None)
    assert found.is_quantized


@pytest.mark.parametrize(
    ("config", "quantised"),
    [
        (compressed("int-quantized", weights(8, "int", "channel"), ignore=()), NAMES),
        (W8A8 | {"ignore": ["re:.*layers.0.*", HEAD]}, (DOWN,)),
        (W8A8 | {"ignore": ["model.layers.0.mlp", HEAD]}, (DOWN, UP, GATE, ROUTER)),
        (W8A8 | {"ignore": ["Linear"]}, ()),
        (MIXED, (DOWN, UP, GATE)),
        (FP8_BLOCK, (DOWN, UP, GATE)),
        (FP8_BLOCK | {"modules_to_not_convert": ["model.layers.0.mlp"]}, (DOWN,)),
        (FP8_BLOCK | {"modules_to_not_convert": ["down_proj", "model.layers.*.mlp.up_proj"]}, (GATE,)),
        (MODELOPT | {"ignore": ["*.layers.0.mlp*", "down_proj"]}, ()),
        (MODELOPT | {"ignore": None, "exclude_modules": [HEAD]}, (DOWN, UP, GATE)),
        (AWQ | {"modules_to_not_convert": ["gate"]}, (DOWN, UP)),
        (GPTQ | {"lm_head": True}, (DOWN, UP, GATE, HEAD)),
        (GPTQ | {"dynamic": {r"-:.*\.layers\.0\.": {}}}, (DOWN,)),
        (GPTQ | {"modules_in_block_to_quantize": [["mlp.up_proj"], ["mlp.down_proj"]]}, (DOWN, UP)),
    ],
)
def test_what_is_left_out_is_not_quantised(config: Any, quantised: tuple[str, ...]) -> None:
    found = read(config)
    assert tuple(name for name in NAMES if found.find_scheme(name)) == quantised


INPUTS = {"num_bits": 8, "type": "int", "dynamic": True, "strategy": "token"}


@pytest.mark.parametrize(
    ("config", "are_inputs_rounded"),
    [
        (compressed("int-quantized", weights(8, "int", "channel"), inputs=INPUTS), True),
        (compressed("pack-quantized", weights(8, "int", "channel")), False),
        (compressed("float-quantized", weights(8, "float", "channel")), False),
        ({"quant_method": "fp8", "activation_scheme": "static"}, True),
        ({"quant_method": "fbgemm_fp8"}, True),
        (MODELOPT, True),
        (MODELOPT | {"quant_algo": "fp8_pb_wo"}, False),
        (AWQ, False),
        (GPTQ, False),
    ],
)
def test_a_scheme_says_whether_its_author_rounded_activations(
    config: Any, *, are_inputs_rounded: bool
) -> None:
    scheme = read(config).find_scheme(DOWN)
    assert scheme is not None
    assert scheme.are_inputs_rounded is are_inputs_rounded


def test_a_matrix_has_the_most_exact_rule() -> None:
    kinds = [scheme and scheme.kind for scheme in map(read(MIXED).find_scheme, (DOWN, UP, GATE))]
    assert kinds == [Kind.INT4, Kind.INT8, Kind.FP8]
    changed = read(GPTQ | {"dynamic": {"+:.*down_proj": {"group_size": 32, "sym": False}}})
    assert changed.find_scheme(DOWN) == Scheme(Kind.INT4, Packing.GPTQ, group=32, has_zeros=True)
    assert changed.find_scheme(UP) == INT4
    both = MIXED["config_groups"] | {"b": MIXED["config_groups"]["b"] | {"targets": ["re:.*mlp.*", "re:.*j"]}}
    both["a"] = both["a"] | {"targets": ["re:.*down_proj$"]}
    scheme = read(MIXED | {"config_groups": both}).find_scheme(DOWN)
    assert scheme is not None
    assert (
        scheme.kind == Kind.FP8
    )  # of several expressions the first by its letters, as in compressed-tensors


def test_names_of_the_text_part_are_known_by_all_their_spellings() -> None:
    name = "language_model.model.layers.0.mlp.up_proj"
    for spelling in (name, "model.language_model.layers.0.mlp.up_proj", UP):
        assert read(W8A8 | {"ignore": [spelling]}).find_scheme(name) is None
    assert read(GPTQ).find_scheme("language_model.lm_head") is None


def test_usual_expressions_are_read() -> None:
    for expression in (r".*layers.*self_attn.*(q|k|v|o)_proj.*", r".*\.mlp\..*_proj$"):
        assert read(W8A8 | {"ignore": [f"re:{expression}"]}).is_quantized
    weights_alone = W8A8 | {"transform_config": rotation("weight_input", "weight_output")}
    assert read(weights_alone) == read(W8A8)


def test_old_spellings_are_read() -> None:
    old = {"quant_method": "sparseml", "sparsity_config": {"format": "dense"}, "quantization_config": W8A8}
    assert read_quantization({"compression_config": old}) == read(W8A8)
    assert read_quantization({"quantization_config": None}) == NOT_QUANTIZED
    rounded = read(W8A8 | {"format": "dense"})
    assert not rounded.is_quantized
    of_kv_cache_alone = {"quant_method": "compressed-tensors", "config_groups": {}, "kv_cache_scheme": {}}
    assert not read(of_kv_cache_alone).is_quantized


@pytest.mark.parametrize("method", REFUSED)
def test_other_methods_are_refused_with_what_to_take(method: str) -> None:
    with pytest.raises(ArchitectureError, match=f"'{method}'.*: (take|export)"):
        read({"quant_method": method})


def of(strategy: Any, number: str = "int", bits: int = 8, **more: Any) -> Any:
    return compressed(more.pop("form", "int-quantized"), weights(bits, number, strategy, **more))


def rotation(*places: str) -> Any:
    applied = [{"targets": ["Linear"], "location": place} for place in places]
    return {"config_groups": {"R1": {"type": "hadamard", "apply": applied}}}


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ([], "must be an object"),
        ({}, "without a quant_method; readable are compressed-tensors"),
        ({"load_in_4bit": True}, "bitsandbytes.*take the model's AWQ"),
        ({"quant_method": "new"}, "'new', which replicas don't read; they read compressed-tensors, fp8"),
        (W8A8 | {"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparse-24-bitmask.*take a dense one"),
        (W8A8 | {"config_groups": []}, None),
        (W8A8 | {"transform_config": rotation("weight_input", "q_attn")}, "rotates 'q_attn'.*without them"),
        (W8A8 | {"transform_config": {"config_groups": {"R1": {}}}}, "transform_config that rotates 'None'"),
        (W8A8 | {"config_groups": [1]}, "it must be an object"),
        (W8A8 | {"config_groups": {"FP8": ["Linear"]}}, "'FP8' in config_groups"),
        (W8A8 | {"ignore": "lm_head"}, "must be a list of names"),
        (W8A8 | {"ignore": ["re:("]}, "no regular expression"),
        (W8A8 | {"ignore": ["re:(a+)+$"]}, "could take forever"),
        (W8A8 | {"ignore": ["re:" + ".*" * 14 + "Z"]}, "could take forever"),
        (FP8_BLOCK | {"modules_to_not_convert": [".?" * 30 + "Z"]}, "could take forever"),
        (GPTQ | {"dynamic": {f"-:{number}.*": {} for number in range(501)}}, "501 expressions"),
        (MODELOPT | {"ignore": [f"{number}*" for number in range(501)]}, "501 expressions"),
        (AWQ | {"modules_to_not_convert": ["gate"] * 501}, "501 names in modules_to_not_convert"),
        (of("group", group_size=128), "'group' for INT8.*scale for each channel"),
        (of("channel", symmetric=False), "symmetric false for 8 bits"),
        (of("channel", bits=4), "'int' in 4 bits in the format 'int-quantized'"),
        (of("tensor_group", "float", 4, form="nvfp4-pack-quantized"), "'float' in 4 bits.*FP8 or INT4"),
        (of("group", bits=4, form="pack-quantized", group_size=16), "group_size 16; replicas read multiples"),
        (of("group", bits=4, form="pack-quantized"), "group_size None"),
        (of("channel", bits=4, form="pack-quantized", actorder="up"), "actorder 'up'"),
        (FP8_BLOCK | {"fmt": "e5m2"}, "fmt 'e5m2'; only e4m3"),
        (FP8_BLOCK | {"weight_block_size": [128]}, r"weight_block_size \[128\]; it must be two counts"),
        (FP8_BLOCK | {"weight_block_size": [True, 32]}, "must be two counts"),
        (FP8_BLOCK | {"weight_block_size": "9" * 5000 + "x128"}, "must be two counts"),
        (FP8_BLOCK | {"weight_block_size": [1, 24]}, "weight_block_size 24; replicas read multiples of 32"),
        (MODELOPT | {"quant_algo": "NVFP4"}, "quant_algo 'NVFP4'.*FP8 checkpoint"),
        (AWQ | {"version": "gemv"}, "version 'gemv'; only AWQ in 4 bits and version gemm"),
        (AWQ | {"checkpoint_format": "gemv_fast"}, "checkpoint_format 'gemv_fast'; only AWQ"),
        (AWQ | {"backend": "llm-awq"}, "backend 'llm-awq'"),
        (AWQ | {"bits": 8}, "bits 8; only AWQ in 4 bits"),
        (GPTQ | {"bits": 3}, "bits 3; only GPTQ in 4 bits"),
        (
            GPTQ | {"checkpoint_format": "marlin"},
            "checkpoint_format 'marlin'; replicas read gptq and gptq_v2",
        ),
        (GPTQ | {"dynamic": {"+:.*": {"bits": 8}}}, "bits 8; only GPTQ in 4 bits"),
        (GPTQ | {"dynamic": {".*": None}}, "in dynamic without an object"),
        (GPTQ | {"desc_act": "no"}, "desc_act 'no'; it must be true or false"),
    ],
)
def test_what_is_not_read_is_named(config: Any, words: str | None) -> None:
    if words is None:
        assert not read(config).is_quantized
        return
    with pytest.raises(ArchitectureError, match=words) as refused:
        read(config)
    assert "\n" not in str(refused.value)


FIELDS = sorted({name for config in (*quantized.CONFIGS, MIXED) for name in config})
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.sampled_from([*READERS, *FIELDS]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(
    st.sampled_from([*quantized.CONFIGS, MIXED]),
    st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=3),
)
def test_no_config_does_more_than_be_refused(config: Any, changes: Any) -> None:
    with suppress(ArchitectureError):
        read(config | changes).find_scheme(DOWN)


@pytest.mark.parametrize(
    ("scheme", "parts"),
    [
        (FP8, {"weight": [(64, 256)], "weight_scale": [(64, 1), (64,)]}),
        (Scheme(Kind.FP8, Packing.PLAIN, 48, 96), {"weight_scale": [(2, 3), (2, 1, 3, 1)]}),
        (Scheme(Kind.FP8, Packing.PLAIN, None), {"weight_scale": [(), (1,), (1, 1)]}),
        (INT4, {"qweight": [(32, 64)], "qzeros": [(2, 8)], "scales": [(2, 64)]}),
        (
            Scheme(Kind.INT4, Packing.AWQ),
            {"qweight": [(256, 8)], "qzeros": [(1, 8)], "scales": [(1, 64)]},
        ),
        (
            Scheme(Kind.INT4, Packing.COMPRESSED, group=128, has_zeros=True, is_ordered=True),
            {"weight_packed": [(64, 32)], "weight_zero_point": [(8, 2)], "weight_g_idx": [(256,)]},
        ),
    ],
)
def test_a_matrix_has_the_tensors_of_its_scheme(
    scheme: Scheme, parts: dict[str, list[tuple[int, ...]]]
) -> None:
    listed = {part.ending: part for part in scheme.list_parts(64, 256)}
    assert {name: list(listed[name].shapes) for name in parts} == parts
    assert all(listed[name].is_required for name in parts)
