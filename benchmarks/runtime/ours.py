"""Our own engine, over HTTP and in process."""

import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.runtime.client import Dialect, OpenAI, WithFields
from benchmarks.runtime.engines import PORT, EngineSpec
from benchmarks.runtime.figures import OURS
from millrace_runtime import contract
from millrace_runtime.execution.host import build_thread_environment

MODEL_NAME = "m"
MAX_BATCHED_TOKENS = 512  # the default on CPUs
WEIGHTS = {"bf16": "FromCheckpoint", "int8": "Int8", "int4": "Int4"}
SERVE = (sys.executable, "-m", "millrace_cli.main", "serve")


def our_specs(model: Path, precision: str, num_threads: int) -> list[EngineSpec]:
    """Return our engine in both manners; nothing at a precision that it can't have."""
    if not can_serve(precision):
        return []
    return [our_server(model, precision), our_library(model, precision, num_threads)]


def our_server(
    model: Path, precision: str, *, flags: Sequence[str] = (), dialect: Dialect | None = None
) -> EngineSpec:
    """Return the command that a user would write for a bf16 checkpoint on a CPU.

    `flags` come last: they add to it, or change it.
    """
    command = [*SERVE, "--model", str(model), "--served-name", MODEL_NAME, "--host", "127.0.0.1"]
    command += ["--port", PORT, "--live-port", "0", "--dtype", "bfloat16", "--max-model-length", "2048"]
    command += ["--max-sequences", "64", "--kv-cache-memory", "1Gi"]
    command += [contract.FLAG_WEIGHTS, WEIGHTS[precision]] if has_flag(contract.FLAG_WEIGHTS) else []
    dialect = dialect or OpenAI(MODEL_NAME)
    return EngineSpec(OURS, precision, (*command, *flags), dialect=dialect, ready_path="/readyz")


def with_tokens(**fields: Any) -> Dialect:
    """Return the dialect that asks for token ids too, as ours and vLLM have it."""
    return WithFields(MODEL_NAME, [{"return_token_ids": True, **fields}])


def our_library(model: Path, precision: str, num_threads: int, num_workers: int = 1) -> EngineSpec:
    """Return the driver of our scheduler and executor, with the replica's own thread settings."""
    driver = (sys.executable, "-m", "benchmarks.runtime.drivers.millrace")
    command = (*driver, str(model), precision, str(MAX_BATCHED_TOKENS), str(num_workers))
    wanted = build_thread_environment({}, num_threads)
    return EngineSpec(OURS, precision, command, wanted)


def can_serve(precision: str) -> bool:
    """Whether `millrace serve` has weights of this precision."""
    return precision == "bf16" or has_flag(contract.FLAG_WEIGHTS)


def has_flag(flag: str) -> bool:
    """Whether `millrace serve` has it."""
    return flag in _show_help()


@cache
def _show_help() -> str:
    return subprocess.run([*SERVE, "--help"], capture_output=True, text=True, check=True, timeout=60).stdout
