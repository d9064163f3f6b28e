"""The machine as /proc tells it, and the models that are written."""

import dataclasses
import os
from pathlib import Path

import pytest
import transformers
from safetensors import safe_open

from benchmarks.runtime.machine import pick_cpus, read_cpu
from benchmarks.runtime.models import __main__ as models
from benchmarks.runtime.models.checkpoint import find_difference, write_model
from benchmarks.runtime.models.shapes import BILLION, SMALL, Experts, Family, Shape
from millrace_kernels.native.cores import count_threads
from millrace_runtime.chat.tokenizer import Tokenizer

TOY = Shape(hidden=64, layers=2, heads=4, kv_heads=2, head_size=16, mlp=96, vocabulary=512)
TOY_QWEN3 = dataclasses.replace(TOY, head_size=32, family=Family.QWEN3)
TOY_MOE = dataclasses.replace(
    TOY_QWEN3, family=Family.QWEN3_MOE, experts=Experts(num=8, num_chosen=2), is_tied=False
)


def test_a_cpu_is_its_name_and_the_flags_that_choose_kernels() -> None:
    text = "processor\t: 0\nmodel name\t: A CPU\nflags\t\t: fpu avx2 avx512_bf16 sse\n\nprocessor\t: 1\n"
    assert read_cpu(text) == {"cpu": "A CPU", "flags": ["avx2", "avx512_bf16"]}
    assert read_cpu("") == {"cpu": "unknown", "flags": []}


def test_a_cpu_whose_name_tells_only_the_maker_is_known_by_its_model() -> None:
    text = "cpu family\t: 25\nmodel\t\t: 17\nmodel name\t: A CPU\nstepping\t: 1\n"
    assert read_cpu(text)["cpu_model"] == "family 25, model 17, stepping 1"


def test_cpus_are_picked_among_those_we_may_use_and_no_two_of_one_core() -> None:
    allowed = os.sched_getaffinity(0)
    picked = pick_cpus(len(allowed))
    assert set(picked) <= allowed
    assert len(picked) == count_threads(len(allowed))
    assert pick_cpus(1) == picked[:1] == [min(allowed)]


def test_a_model_of_another_shape_is_told_by_what_differs(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", TOY)
    assert find_difference(folder, TOY) is None
    assert (
        find_difference(folder, dataclasses.replace(TOY, layers=3)) == "num_hidden_layers is 2 instead of 3"
    )


def test_a_written_model_has_the_weights_that_are_counted_and_a_tokenizer_we_load(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", TOY)
    with safe_open(folder / "model.safetensors", "pt") as weights:
        num_weights = sum(weights.get_tensor(name).numel() for name in weights.keys())  # noqa: SIM118
    assert num_weights == TOY.num_weights
    assert Tokenizer.load(folder).decode([265, 266]) == "filler265filler266"


@pytest.mark.slow
@pytest.mark.reads("benchmarks/runtime", "kernels", "runtime/millrace_runtime")
@pytest.mark.parametrize("shape", [TOY, TOY_QWEN3, TOY_MOE], ids=lambda shape: shape.family)
def test_transformers_reads_a_written_model_as_the_peers_converters_do(tmp_path: Path, shape: Shape) -> None:
    folder = write_model(tmp_path / "model", shape)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert (tokenizer.eos_token_id, len(tokenizer)) == (0, TOY.vocabulary)
    model, told = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert sum(weights.numel() for weights in model.parameters()) == shape.num_weights
    assert not any(told.values())


def test_the_compared_model_overwrites_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        models.main([str(tmp_path)])
    assert f"{tmp_path} exists: name another folder" in capsys.readouterr().err


def test_a_decode_step_reads_every_weight_and_its_own_context() -> None:
    assert round(SMALL.num_weights / 1e6, 1) == 134.5
    assert BILLION.num_weights > 1e9
    context = BILLION.count_bytes_per_token(10) - BILLION.count_bytes_per_token(0)
    assert context == 10 * 2 * 2 * 16 * 8 * 64


def test_a_decode_step_reads_the_chosen_experts_and_no_embedding_beside_a_head() -> None:
    all_read = dataclasses.replace(TOY_MOE, experts=Experts(num=8, num_chosen=8))
    assert all_read.num_read_weights == TOY_MOE.num_weights - 512 * 64
    assert all_read.num_read_weights - TOY_MOE.num_read_weights == 2 * 6 * 3 * 64 * 96
