"""GuideLLM's benchmark. It needs torch, which it takes from the repository's environment."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from replica import Replica

COMMAND = "import sys; sys.path.append(sys.argv.pop(1)); from guidellm.__main__ import cli; cli()"
SITE = next((Path(__file__).parents[2] / ".venv" / "lib").glob("python3*/site-packages"))


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_a_benchmark(replica: Replica, tmp_path: Path, path: str) -> None:
    flags = {
        "--backend": f"kind=openai_http,target={replica.url},model=scripted,request_format={path}",
        "--profile": "kind=concurrent,streams=2",
        "--constraint": "kind=max_requests,count=4",
        "--tokenizer": f"kind=hf_auto,model={replica.model}",
        "--data": "kind=synthetic_text,prompt_tokens=32,output_tokens=16",
        "--output": f"kind=json,path={tmp_path}/result.json",
    }
    words = [word for flag in flags.items() for word in flag]
    command = [sys.executable, "-c", COMMAND, SITE, "run", "--disable-console", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    [benchmark] = json.loads((tmp_path / "result.json").read_text())["benchmarks"]
    totals = benchmark["metrics"]["request_totals"]
    assert (totals["successful"], totals["errored"]) == (4, 0)
