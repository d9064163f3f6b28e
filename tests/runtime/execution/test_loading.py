import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from millrace_fit.shard import Shard
from millrace_kernels.linear.format import Format
from millrace_kernels.native.abi import Kind
from millrace_kernels.native.errors import NativeError
from millrace_kernels.native.instruction_sets import list_usable_sets, read_cpu_flags
from millrace_runtime.execution import native_runner
from millrace_runtime.execution.build import GPU_PATH, _name_device, build_executor
from millrace_runtime.execution.errors import (
    BadCheckpointError,
    ModelError,
    ModelNotFoundError,
    UnsupportedModelError,
)
from millrace_runtime.execution.loading import choose_device, choose_format, name_type
from millrace_runtime.execution.settings import ExecutionSettings
from millrace_runtime.protocol.step import KvGroup, Placement

Make = Callable[..., Path]


def build(path: Path, **settings: Any) -> Any:
    return build_executor(ExecutionSettings(model_path=path, **({"device": "cpu"} | settings)))


def test_a_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="there is no folder"):
        build(tmp_path / "nothing")


def test_a_folder_without_config(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"holds no config\.json"):
        build(tmp_path)


def test_a_config_that_is_no_json(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(BadCheckpointError, match="can't be read as JSON"):
        build(tmp_path)


def test_an_unknown_architecture_names_the_supported(make_model: Make) -> None:
    path = make_model(architectures=["BertModel"])
    with pytest.raises(UnsupportedModelError, match=r"BertModel, .*; .*own-model.md lists"):
        build(path)


def test_missing_weights_and_tensors(make_model: Make) -> None:
    path = make_model()
    weights = load_file(path / "model.safetensors")
    del weights["model.norm.weight"]
    save_file(weights, path / "model.safetensors")
    with pytest.raises(BadCheckpointError, match=r"lack the tensor model\.norm\.weight"):
        build(path)
    (path / "model.safetensors").unlink()
    with pytest.raises(BadCheckpointError, match=r"no \*\.safetensors file"):
        build(path)


def test_another_shape_than_the_config_says(make_model: Make) -> None:
    path = make_model()
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"vocab_size": 200}))
    with pytest.raises(
        BadCheckpointError, match=r"has the shape \[199, 48\] and config\.json asks for \[200"
    ):
        build(path)


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
def test_a_type_that_means_nothing_without_scales_is_refused_by_name(
    make_model: Make, dtype: torch.dtype
) -> None:
    path = make_model()
    weights = load_file(path / "model.safetensors")
    name = "model.layers.1.mlp.up_proj.weight"
    weights[name] = weights[name].to(dtype)
    save_file(weights, path / "model.safetensors")
    with pytest.raises(BadCheckpointError, match=r"mlp\.up_proj\.weight is stored as (I8|F8_E4M3),"):
        build(path)


@pytest.mark.parametrize("kv_cache", ["Model", "Int8"])
def test_fixed_scales_of_the_kv_cache_are_skipped_aloud(make_model: Make, kv_cache: str) -> None:
    path, lines = make_model(), list[str]()
    weights = load_file(path / "model.safetensors")
    for kind in "qkv":
        weights |= {f"model.layers.{layer}.self_attn.{kind}_scale": torch.tensor(0.5) for layer in (0, 1)}
    save_file(weights, path / "model.safetensors")
    build_executor(ExecutionSettings(path, device="cpu", kv_cache=kv_cache), lines.append)
    [line] = [line for line in lines if "_scale" in line]
    assert line == (
        "the checkpoint's fixed scales of the KV cache (model.layers.0.self_attn.k_scale) are left out: with "
        "--kv-cache Int8 or Fp8 each token and head has a scale of its own"
    )


def test_a_damaged_file(make_model: Make) -> None:
    path = make_model()
    (path / "model.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0nothing")
    with pytest.raises(BadCheckpointError, match="download it again"):
        build(path)


def shard(path: Path) -> dict[str, str]:
    weights = load_file(path / "model.safetensors")
    (path / "model.safetensors").unlink()
    places = {name: f"part-{number % 2}.safetensors" for number, name in enumerate(weights)}
    for part in set(places.values()):
        save_file({name: weights[name] for name in weights if places[name] == part}, path / part)
    return places


def test_a_sharded_index_is_followed(make_model: Make, make_driver: Callable[..., Any]) -> None:
    def first(path: Path) -> Any:
        driver = make_driver(path)
        driver.start(0, [5, 6, 7], num_logprobs=5)
        return driver.advance(10)

    whole, parts = make_model("whole"), make_model("parts")
    index = {"weight_map": shard(parts)}
    (parts / "model.safetensors.index.json").write_text(json.dumps(index))
    assert first(parts) == first(whole)
    (parts / "part-1.safetensors").unlink()
    with pytest.raises(BadCheckpointError, match=r"part-1\.safetensors, which is not there"):
        build(parts)


def rewrite(path: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    """Change a checkpoint's tensors."""
    weights = load_file(path / "model.safetensors")
    change(weights)
    save_file(weights, path / "model.safetensors")


@pytest.mark.parametrize("part", ["0.self_attn.q_proj.bias", "2.mlp.up_proj.weight"])
def test_a_tensor_that_nobody_reads_is_another_models(make_model: Make, part: str) -> None:
    path, name = make_model(), f"model.layers.{part}"
    rewrite(path, lambda weights: weights.update({name: torch.ones(48)}))
    with pytest.raises(BadCheckpointError, match=f"model without the tensor {name}, one of 1 that"):
        build(path)


def test_a_tied_head_and_old_rotary_frequencies_may_lie_beside(make_model: Make) -> None:
    path, frequencies = make_model(tie_word_embeddings=True), "model.layers.1.self_attn.rotary_emb.inv_freq"

    def change(weights: dict[str, torch.Tensor]) -> None:
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
        weights[frequencies] = torch.ones(4)

    rewrite(path, change)
    assert build(path)


def test_a_tied_head_that_differs_is_refused(make_model: Make) -> None:
    """transformers would use it: whoever merged the model has trained it, and did not change the config."""
    path = make_model(tie_word_embeddings=True)

    def change(weights: dict[str, torch.Tensor]) -> None:
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
        weights["lm_head.weight"][-1, -1] += 1

    rewrite(path, change)
    with pytest.raises(BadCheckpointError, match=r"lm_head\.weight differs .* tie_word_embeddings"):
        build(path)


def test_a_name_in_two_files_is_refused_and_the_usual_file_comes_first(make_model: Make) -> None:
    path = make_model()
    weights = load_file(path / "model.safetensors")
    save_file({name: torch.zeros_like(value) for name, value in weights.items()}, path / "ema.safetensors")
    assert build(path)
    (path / "model.safetensors").rename(path / "weights.safetensors")
    with pytest.raises(BadCheckpointError, match=r"weights\.safetensors holds the tensor lm_head\.weight"):
        build(path)


@pytest.mark.parametrize("places", [["model.safetensors"], None, {"a": 5}])
def test_an_index_without_a_map_is_refused(make_model: Make, places: Any) -> None:
    path = make_model()
    (path / "model.safetensors").rename(path / "model-1.safetensors")  # it would count before the index
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    with pytest.raises(BadCheckpointError, match="has no weight_map"):
        build(path)


def test_a_type_that_torch_does_not_have_is_named(make_model: Make) -> None:
    path = make_model()
    tensor = {"dtype": "F6_E2M3", "shape": [16], "data_offsets": [0, 12]}
    header = json.dumps({"model.embed_tokens.weight": tensor})
    content = len(header).to_bytes(8, "little") + header.encode() + bytes(12)
    (path / "model.safetensors").write_bytes(content)
    with pytest.raises(BadCheckpointError, match=r"embed_tokens\.weight is stored as F6_E2M3"):
        build(path)


@pytest.mark.parametrize(
    ("changes", "stored", "served"),
    [
        ({"dtype": None}, torch.bfloat16, torch.bfloat16),
        ({"dtype": None}, torch.float32, torch.float32),
        ({"dtype": None, "torch_dtype": "bfloat16"}, torch.bfloat16, torch.bfloat16),
        ({"dtype": "bfloat16"}, torch.float32, torch.bfloat16),
        ({"dtype": "float16"}, torch.float16, torch.bfloat16),
    ],
)
def test_auto_is_the_type_that_the_config_says_or_else_the_stored_one(
    make_model: Make, changes: dict[str, Any], stored: torch.dtype, served: torch.dtype
) -> None:
    path, logged = make_model(**changes), list[str]()
    rewrite(path, lambda weights: weights.update({name: value.to(stored) for name, value in weights.items()}))
    executor = build_executor(ExecutionSettings(model_path=path, device="cpu"), logged.append)
    assert executor._runner.kv_caches[0].data.dtype is served
    lines = [f"the weights are stored as {name_type(stored)} and served as {name_type(served)}"]
    assert logged[:-2] == (lines if stored is not served else [])


def test_the_stored_type_is_that_of_most_numbers_not_of_most_tensors_or_the_first(make_model: Make) -> None:
    def round_large(weights: dict[str, torch.Tensor]) -> None:
        large = {name: value for name, value in weights.items() if "mlp" in name or "embed" in name}
        weights.update({name: value.bfloat16() for name, value in large.items()})

    path = make_model(dtype=None)
    rewrite(path, round_large)
    assert build(path)._runner.kv_caches[0].data.dtype is torch.bfloat16


def test_the_placement_is_what_was_loaded_and_not_what_was_asked_for(make_model: Make) -> None:
    path = make_model(dtype="bfloat16")
    fastest = list_usable_sets(read_cpu_flags())[0].value
    assert build(path).placement == Placement("cpu", fastest, "bfloat16", "FromCheckpoint", 1)
    asked = build(path, dtype="float32", weights="Int8", kernels="portable").placement
    assert asked == Placement("cpu", "portable", "float32", "Int8", 1)
    assert build(path, kernels="torch").placement.device_name == "torch"


def test_a_gpu_has_its_own_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"GPU {device.index}")
    assert _name_device(torch.device("cuda", 1), GPU_PATH) == "GPU 1"


def test_a_type_that_is_not_known_is_named(make_model: Make) -> None:
    with pytest.raises(UnsupportedModelError, match="dtype 'banana'; supported are bfloat16, float16"):
        build(make_model(dtype="banana"))


def test_a_model_that_the_native_kernels_cannot_run_runs_with_torch(
    make_model: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> Any:
        raise NativeError("no thread can be started")

    monkeypatch.setattr(native_runner, "NativeProgram", refuse)
    logged: list[str] = []
    path = make_model()
    build_executor(ExecutionSettings(model_path=path, device="cpu"), logged.append)
    assert logged[:-1] == ["torch computes, slowly: no thread can be started"]
    assert build(path).placement.device_name == "torch"
    choice = list_usable_sets(read_cpu_flags())[0].value
    with pytest.raises(ModelError, match=f"--kernels {choice}: no thread"):
        build(path, kernels=choice)


def test_an_index_may_not_leave_its_folder(make_model: Make) -> None:
    path = make_model()
    (path / "model.safetensors").rename(path / "model-1.safetensors")  # it would count before the index
    index = {"weight_map": {"a": "../model.safetensors"}}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(BadCheckpointError, match="points outside its folder"):
        build(path)


def test_every_layer_reads_one_rotary_table_of_the_served_length(make_model: Make) -> None:
    path = make_model(num_hidden_layers=3)
    block = 3 * 2 * 2 * 8 * 16 * 4
    for settings in ({"max_model_length": 96}, {"kv_cache_bytes": 6 * block}):
        executor = build(path, **settings)
        operations = [
            op for op in executor._runner._program._record.operations if op.kind is Kind.ROTARY_KV_WRITE
        ]
        assert executor.limits.max_model_length == 96
        assert [op.length for op in operations] == [96] * 3
        assert len({op.weight.data_ptr() for op in operations}) == 1


@pytest.mark.parametrize(
    ("changes", "groups"),
    [
        ({"architectures": ["MistralForCausalLM"]}, (KvGroup(2 * (256 + 2) + 8, 4096),)),
        (
            {
                "architectures": ["Qwen2ForCausalLM"], "use_sliding_window": True, "sliding_window": 1024,
                "layer_types": ["full_attention", "sliding_attention"],
            },
            (KvGroup(2 * 512), KvGroup(2 * (64 + 2) + 8, 1024)),
        ),
    ],
)  # fmt: skip
def test_layers_with_a_window_have_blocks_for_what_it_sees(
    make_model: Make, changes: dict[str, Any], groups: tuple[KvGroup, ...]
) -> None:
    """Of two sequences of 8,192 tokens, computed by 128 tokens a step."""
    path = make_model(max_position_embeddings=8192, **changes)
    assert build(path, max_sequences=2, max_batched_tokens=128).limits.groups == groups


@pytest.mark.parametrize(
    "settings",
    [
        {"device": "tpu"},
        {"dtype": "int3"},
        {"kernels": "sse"},
        {"max_sequences": 0},
        {"max_batched_tokens": 0},
        {"weights": "int4"},
    ],
)
def test_bad_settings_are_refused(make_model: Make, settings: dict[str, Any]) -> None:
    with pytest.raises(ModelError):
        build(make_model(), **settings)


def test_rounded_weights_on_a_gpu_are_refused_with_what_to_write() -> None:
    with pytest.raises(ModelError, match=r"leave it out .* or serve on CPUs"):
        choose_format("Int8", torch.device("cuda"))
    assert choose_format("FromCheckpoint", torch.device("cuda")) == Format.DENSE


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_without_a_device_is_refused(make_model: Make) -> None:
    with pytest.raises(ModelError, match=r"finds no GPU that works \(\w.*\): give the replica one"):
        build(make_model(), device="cuda")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_fall_back_to_cpus_is_said_with_its_reason(make_model: Make) -> None:
    logged: list[str] = []
    build_executor(ExecutionSettings(make_model(), device="auto", max_model_length=64), logged.append)
    assert logged[0].startswith("serving on CPUs, as torch finds no GPU that works: ")


def test_more_workers_than_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert choose_device("auto", Shard(1, 2)) == torch.device("cuda", 1)
    with pytest.raises(ModelError, match="a GPU for each worker and torch finds 2: lower it, or give"):
        choose_device("auto", Shard(1, 4))
