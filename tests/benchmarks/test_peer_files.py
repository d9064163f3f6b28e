"""What the benchmark makes below $PEERS, and about how long a run takes."""

import dataclasses
import json
from pathlib import Path

import pytest

from benchmarks.runtime.duration import estimate_seconds
from benchmarks.runtime.errors import EngineError
from benchmarks.runtime.models.peer_files import convert_for, find_checkpoint
from benchmarks.runtime.models.shapes import MOE, QWEN3, SMALL
from benchmarks.runtime.models.subjects import SUBJECTS
from benchmarks.runtime.peers import CONVERTER, PEERS, QUANTISER
from benchmarks.runtime.workload import CASES

TOY = dataclasses.replace(
    QWEN3, hidden=64, layers=1, heads=4, kv_heads=2, head_size=16, mlp=96, vocabulary=512
)
SUBJECT = dataclasses.replace(SUBJECTS["qwen3"], shape=TOY)
(LLAMA_CPP,) = (peer for peer in PEERS if peer.name == "llama.cpp")


def install(path: Path, script: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_an_absent_checkpoint_is_written_whole_and_then_kept(tmp_path: Path) -> None:
    (tmp_path / "models/qwen3-bf16.partial").mkdir(parents=True)  # of a run that was killed
    folder = find_checkpoint(SUBJECT, tmp_path)
    assert json.loads((folder / "config.json").read_text())["model_type"] == "qwen3"
    written = (folder / "model.safetensors").stat().st_mtime_ns
    assert json.loads((folder / "tokenizer.json").read_text())["model"]["merges"]  # llama.cpp refuses none
    assert find_checkpoint(SUBJECT, tmp_path) == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == written
    assert [entry.name for entry in (tmp_path / "models").iterdir()] == ["qwen3-bf16"]


def test_absent_gguf_files_are_made_by_the_converter_and_what_fails_leaves_none(tmp_path: Path) -> None:
    convert_for(LLAMA_CPP, SUBJECT, tmp_path, "int8")
    install(tmp_path / CONVERTER, 'echo "$1 $4 $5" > "$3"')
    install(tmp_path / QUANTISER, 'cat "$1" > "$2"; echo "no $3" >&2; test "$3" = Q8_0')
    convert_for(LLAMA_CPP, SUBJECT, tmp_path, "int8")
    checkpoint = tmp_path / "models/qwen3-bf16"
    assert (tmp_path / "models/gguf/qwen3-Q8_0.gguf").read_text() == f"{checkpoint} --outtype bf16\n"
    with pytest.raises(EngineError, match="llama-quantize failed: no Q4_0"):
        convert_for(LLAMA_CPP, SUBJECT, tmp_path, "int4")
    assert not (tmp_path / "models/gguf/qwen3-Q4_0.gguf").exists()


def test_a_run_is_longer_by_rounds_engines_threads_and_the_weights_that_are_read() -> None:
    small, qwen3, moe = (estimate_seconds(shape, CASES, 4, 15, 2) for shape in (SMALL, QWEN3, MOE))
    assert small < moe < qwen3 < estimate_seconds(QWEN3, CASES, 4, 15, 1)
    assert qwen3 < estimate_seconds(QWEN3, CASES, 5, 15, 2) < estimate_seconds(QWEN3, CASES, 5, 16, 2)
