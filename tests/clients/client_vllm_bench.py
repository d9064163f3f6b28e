"""`vllm bench serve` of the peers of `make bench-runtime`: vLLM is too large for the environment here."""

import os
import subprocess
from pathlib import Path

import pytest
from replica import Replica

VLLM = Path(os.environ.get("PEERS", "")) / "venvs" / "vllm" / "bin" / "vllm"
NUM_PROMPTS = 8


@pytest.mark.skipif("PEERS" not in os.environ or not VLLM.exists(), reason="PEERS has no vLLM")
@pytest.mark.parametrize(
    "backend",
    [("openai",), ("openai-chat", "--endpoint", "/v1/chat/completions")],
    ids=lambda flags: flags[0],
)
def test_a_benchmark_finds_the_model_by_itself(replica: Replica, backend: tuple[str, ...]) -> None:
    load = ("--dataset-name", "random", "--random-input-len", "64", "--random-output-len", "16")
    command = [VLLM, "bench", "serve", "--base-url", replica.url, "--tokenizer", replica.model, *load]
    done = subprocess.run(
        [*command, "--num-prompts", str(NUM_PROMPTS), "--backend", *backend],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"Successful requests: {NUM_PROMPTS}" in " ".join(done.stdout.split())
