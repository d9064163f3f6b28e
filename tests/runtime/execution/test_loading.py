import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from millrace_kernels.native.abi import Kind
from millrace_kernels.step import Format
from millrace_runtime.execution.build import build_executor
from millrace_runtime.execution.errors import (
    BadCheckpointError,
    CapacityError,
    ModelError,
    ModelNotFoundError,
    UnsupportedModelError,
)
from millrace_runtime.execution.kv_cache import allocate_cache
from millrace_runtime.execution.loading import choose_format
from millrace_runtime.execution.settings import ExecutionSettings
from millrace_runtime.models.registry import find_architecture
from tests.runtime.execution.conftest import TINY

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
    with pytest.raises(UnsupportedModelError, match="BertModel; supported are LlamaForCausalLM"):
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
    with pytest.raises(UnsupportedModelError, match=r"mlp\.up_proj\.weight is stored as (int|float)8"):
        build(path)


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


def test_an_index_may_not_leave_its_folder(make_model: Make) -> None:
    path = make_model()
    index = {"weight_map": {"a": "../model.safetensors"}}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(BadCheckpointError, match="points outside its folder"):
        build(path)


def test_limits_follow_the_settings(make_model: Make) -> None:
    limits = build(make_model(), max_sequences=3, max_model_length=100).limits
    assert (limits.num_slots, limits.max_model_length, limits.groups[0].num_blocks) == (3, 100, 3 * 7)
    assert (limits.block_size, limits.depth, limits.vocabulary_size) == (16, 1, 199)


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


def test_the_cache_takes_no_more_than_all_sequences_can_fill(make_model: Make) -> None:
    limits = build(make_model(), max_sequences=3, max_model_length=100, kv_cache_bytes=1 << 30).limits
    assert limits.groups[0].num_blocks == 3 * 7


def test_a_cache_that_no_machine_has_room_for_is_refused() -> None:
    architecture = find_architecture(TINY)
    with pytest.raises(CapacityError, match="lower --kv-cache-memory"):
        allocate_cache(architecture, 1 << 40, torch.float32, torch.device("cpu"))


def test_without_a_length_the_models_own_or_what_fits(make_model: Make) -> None:
    path = make_model()
    assert build(path).limits.max_model_length == 1024
    block = 2 * 2 * 2 * 8 * 16 * 4
    assert build(path, kv_cache_bytes=10 * block).limits.max_model_length == 160


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_model_length": 2000}, "more than the model's own 1024"),
        ({"max_model_length": 512, "kv_cache_bytes": 100_000}, r"\(--kv-cache-memory\) .* lower --max-mod"),
        ({"kv_cache_bytes": 10}, "give the cache more memory"),
    ],
)
def test_a_length_without_room_is_refused(make_model: Make, settings: dict[str, int], message: str) -> None:
    with pytest.raises(CapacityError, match=message):
        build(make_model(), **settings)


def test_a_window_is_refused_where_sequences_are_longer_with_the_length_that_works(make_model: Make) -> None:
    path = make_model(architectures=["MistralForCausalLM"], max_position_embeddings=8192)
    for settings in ({}, {"max_model_length": 4097}):
        with pytest.raises(UnsupportedModelError, match=r"sliding_window 4096.*--max-model-length 4096 "):
            build(path, **settings)
    assert build(path, max_model_length=4096).limits.max_model_length == 4096


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
    assert choose_format("FromCheckpoint", torch.device("cuda")) is Format.DENSE


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_without_a_device_is_refused(make_model: Make) -> None:
    with pytest.raises(ModelError, match="finds no CUDA device"):
        build(make_model(), device="cuda")
