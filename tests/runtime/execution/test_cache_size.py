"""How large the KV cache is, and how long sequences may be."""

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from millrace_fit.kv_budget import Budget
from millrace_kernels.paged_attention.cache import KvFormat
from millrace_runtime.execution import build as build_module
from millrace_runtime.execution.build import build_executor
from millrace_runtime.execution.errors import CapacityError, ModelError
from millrace_runtime.execution.kv_cache import allocate_cache, choose_kv_format
from millrace_runtime.execution.settings import ExecutionSettings
from millrace_runtime.models.decoder import find_architecture
from millrace_runtime.models.model import KvShape
from tests.runtime.execution.conftest import TINY

Make = Callable[..., Path]


def build(path: Path, **settings: Any) -> Any:
    return build_executor(ExecutionSettings(model_path=path, **({"device": "cpu"} | settings)))


def test_limits_follow_the_settings(make_model: Make) -> None:
    limits = build(make_model(), max_sequences=3, max_model_length=100).limits
    assert (limits.num_slots, limits.max_model_length, limits.groups[0].num_blocks) == (3, 100, 3 * 7)
    assert (limits.block_size, limits.depth, limits.vocabulary_size) == (16, 1, 199)


def test_the_cache_takes_all_that_it_is_given_for_prefixes(make_model: Make) -> None:
    limits = build(make_model(), max_sequences=3, max_model_length=100, kv_cache_bytes=1 << 30).limits
    assert limits.groups[0].num_blocks == (1 << 30) // 4096


def test_a_cache_that_no_machine_has_room_for_is_refused() -> None:
    architecture = find_architecture(TINY)
    with pytest.raises(CapacityError, match="lower --kv-cache-memory"):
        allocate_cache(architecture, [1 << 40], torch.float32, torch.device("cpu"))


def test_without_a_length_the_models_own_or_what_fits(make_model: Make) -> None:
    path = make_model()
    assert build(path).limits.max_model_length == 1024
    block = 2 * 2 * 2 * 8 * 16 * 4
    assert build(path, kv_cache_bytes=10 * block).limits.max_model_length == 160


@pytest.mark.parametrize("head_dim", [64, 96, 128])
def test_eight_bits_hold_twice_the_sequences(make_model: Make, head_dim: int) -> None:
    path, counts = make_model(dtype="bfloat16", head_dim=head_dim), {}
    for kv_cache in ("Model", "Int8"):
        executor = build(path, kv_cache=kv_cache, kv_cache_bytes=4 << 20, max_model_length=256)
        taken = sum(cache.nbytes for cache in executor._runner.kv_caches)
        assert taken <= 4 << 20
        counts[kv_cache] = executor.limits.groups[0].num_blocks
        assert executor.placement.kv_cache == executor.limits.kv_format == kv_cache
    assert counts["Int8"] >= 1.9 * counts["Model"]


@pytest.mark.parametrize(
    ("kv_cache", "text"),
    [
        ("Fp8", r"--kv-cache Fp8: .* for GPUs only; write --kv-cache Int8 \(spec.model.quantization.kvCache"),
        ("int8", "\"int8\" is not known: use 'Model', 'Fp8', 'Int8'"),
    ],
)
def test_a_cache_without_kernels_is_refused(make_model: Make, kv_cache: str, text: str) -> None:
    with pytest.raises(ModelError, match=text):
        build(make_model(), kv_cache=kv_cache)


def test_fp8_is_for_gpus_that_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    capability = (8, 9)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA A100")
    device = torch.device("cuda", 0)
    assert choose_kv_format("Int8", device) is KvFormat.INT8
    assert choose_kv_format("Fp8", device) is KvFormat.FP8
    capability = (8, 6)
    with pytest.raises(ModelError, match="Fp8: NVIDIA A100 has no FP8; write --kv-cache Int8"):
        choose_kv_format("Fp8", device)


@pytest.mark.parametrize(
    ("settings", "size", "length"),
    [
        ({}, "96 blocks, 393216 bytes", "1024 tokens"),
        ({"max_model_length": 32}, "96 blocks, 393216 bytes", "32 tokens"),
        (
            {"kv_cache_bytes": 25_000},
            "6 blocks, 24576 bytes",
            "96 tokens, not the model's 1024: give the cache more memory for longer ones",
        ),
    ],
)
def test_the_log_says_how_large_the_cache_is_and_how_long_sequences_may_be(
    make_model: Make, settings: dict[str, Any], size: str, length: str
) -> None:
    logged: list[str] = []
    defaults = {"max_sequences": 2, "kv_cache_bytes": 96 * 4096}
    build_executor(ExecutionSettings(make_model(), device="cpu", **(defaults | settings)), logged.append)
    assert logged[-1] == f"a KV cache of {size}, within --kv-cache-memory; sequences of up to {length}"


def test_the_cache_is_sized_once_the_rest_of_the_memory_is_taken(
    make_model: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    block, readings, text_bytes = 2 * 2 * 2 * 8 * 16 * 4, [4, 10], list[int]()

    def read_memory(text: int) -> Budget:
        text_bytes.append(text)
        return Budget(readings.pop() * block, "the test")

    monkeypatch.setattr(build_module, "measure_usable_memory", read_memory)
    limits = build(make_model(), text_memory_bytes=7).limits
    assert (limits.groups[0].num_blocks, limits.max_model_length) == (4, 64)
    assert text_bytes == [7, 7]


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


def test_a_cache_on_a_cpu_takes_memory_as_its_blocks_are_written() -> None:
    shape = SimpleNamespace(kv_shapes=[KvShape(8, 64, 0)])
    before = resident()
    cache = allocate_cache(shape, [8192], torch.float32, torch.device("cpu"))[0].data
    assert cache.nbytes == 8192 * 2 * 8 * 16 * 64 * 4  # half a gigabyte
    assert resident() - before < 64 << 20
    assert not cache[8191].any()


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
