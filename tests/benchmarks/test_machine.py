"""The machine as /proc tells it, and the models that are written."""

from pathlib import Path

from safetensors import safe_open

from benchmarks.runtime.machine import Ticks, read_cpu, read_ticks
from benchmarks.runtime.models import BILLION, SMALL, Shape, write_model
from millrace_runtime.chat.tokenizer import Tokenizer


def test_a_cpu_is_its_name_and_the_flags_that_choose_kernels() -> None:
    text = "processor\t: 0\nmodel name\t: A CPU\nflags\t\t: fpu avx2 avx512_bf16 sse\n\nprocessor\t: 1\n"
    assert read_cpu(text) == {"cpu": "A CPU", "flags": ["avx2", "avx512_bf16"]}
    assert read_cpu("") == {"cpu": "unknown", "flags": []}


def test_waiting_for_a_disk_is_idle() -> None:
    assert read_ticks("cpu  10 1 5 80 4 0 0 2 7 7\ncpu0 1 1 1 1\n") == Ticks(total=102, idle=84)


def test_a_written_model_has_the_weights_that_are_counted_and_a_tokenizer_we_load(tmp_path: Path) -> None:
    shape = Shape(hidden=64, layers=2, heads=4, kv_heads=2, mlp=96, vocabulary=512)
    folder = write_model(tmp_path / "model", shape)
    with safe_open(folder / "model.safetensors", "pt") as weights:
        num_weights = sum(weights.get_tensor(name).numel() for name in weights.keys())  # noqa: SIM118
    assert num_weights == shape.num_weights
    assert Tokenizer.load(folder).decode([256, 257]) == "filler256filler257"


def test_a_decode_step_reads_every_weight_and_its_own_context() -> None:
    assert round(SMALL.num_weights / 1e6, 1) == 134.5
    assert BILLION.num_weights > 1e9
    context = BILLION.count_bytes_per_token(10) - BILLION.count_bytes_per_token(0)
    assert context == 10 * 2 * 2 * 16 * 8 * 64
