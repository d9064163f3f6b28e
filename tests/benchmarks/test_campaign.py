"""Whole runs on small models: of an engine made up here, and of our own."""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.runtime import __main__, campaign, lineup
from benchmarks.runtime.choice import NOT_ASKED_FOR, Choice
from benchmarks.runtime.engines import EngineSpec
from benchmarks.runtime.errors import UsageError
from benchmarks.runtime.figures import OURS
from benchmarks.runtime.loads import setting
from benchmarks.runtime.models.checkpoint import write_model
from benchmarks.runtime.models.shapes import Shape
from benchmarks.runtime.models.subjects import LLAMA, SUBJECTS

TOY = Shape(hidden=64, layers=2, heads=4, kv_heads=2, head_size=16, mlp=96, vocabulary=32000)
DRIVER = """
import json, sys
if sys.argv[1] == "int8": sys.exit("no such weights")
print(json.dumps({"ready": ""}), flush=True)
for line in sys.stdin:
    question = json.loads(line)
    found = [[0, 1, 2, question["num_tokens"]] for _ in question["prompts"]]
    print(json.dumps({"completions": found}), flush=True)
"""


def our_fake_specs(_: Path, precision: str, __: int) -> list[EngineSpec]:
    return [EngineSpec(OURS, precision, (sys.executable, "-c", DRIVER, precision))]


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PEERS", raising=False)
    monkeypatch.setitem(SUBJECTS, "llama", dataclasses.replace(LLAMA, shape=TOY))
    monkeypatch.setattr(campaign, "measure_read_bandwidth", lambda _: 1e9)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lineup, "our_specs", our_fake_specs)
    monkeypatch.setattr(lineup, "can_serve", lambda _: True)


def run(*argv: str, output: Path) -> tuple[int, dict[str, Any]]:
    status = __main__.main([*argv, "--output", str(output)])
    return status, json.loads(output.read_text())


@pytest.mark.usefixtures("toy", "fake")
def test_where_ours_fails_the_result_keeps_what_was_measured_and_the_command_fails(tmp_path: Path) -> None:
    argv = ("--quick", "--only", "single", "--precisions", "bf16,int8")
    status, result = run(*argv, output=tmp_path / "run.json")
    assert status == 1
    assert result["failed"] == "it ended by itself; its last words: no such weights"
    assert [(row["precision"], len(row["rounds"])) for row in result["rows"]] == [("bf16", 1)]


@pytest.mark.usefixtures("toy", "fake")
def test_a_result_says_with_which_flags_it_came_and_what_they_left_out(tmp_path: Path) -> None:
    argv = ("--rounds", "2", "--only", "single", "--engines", "ours", "--precisions", "bf16")
    status, result = run(*argv, output=tmp_path / "run.json")
    assert status == 0
    assert "failed" not in result
    assert result["argv"] == list(argv)
    assert result["left_out"]["part start"] == result["left_out"]["precision int4"] == NOT_ASKED_FOR
    assert len(result["rows"][0]["rounds"]) == 2
    assert set(result["machine"]["busy_percent_of_others"]) == {"median", "highest"}


@pytest.mark.usefixtures("toy", "fake")
def test_a_part_that_our_command_can_not_do_is_left_out_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setting, "has_flag", lambda _: False)
    status, result = run("--quick", "--only", "drafts", "--engines", "ours", output=tmp_path / "run.json")
    assert status == 0
    assert result["left_out"]["part drafts"] == "`millrace serve` has no --speculative-tokens"
    assert not result["figures"]


def test_peers_with_another_model_are_refused(tmp_path: Path) -> None:
    write_model(tmp_path / "models/small-bf16", TOY)
    choice = Choice(LLAMA, ("single",), ("bf16",), None, 1, is_quick=True, peers=tmp_path)
    with pytest.raises(UsageError, match=r"hidden_size is 64 .*Remove it"):
        campaign.Campaign(choice, tmp_path / "run").run()


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.usefixtures("toy")
def test_our_engine_runs_over_http_and_in_process_and_starts(tmp_path: Path) -> None:
    argv = ("--quick", "--only", "single,c8,start", "--engines", "ours", "--precisions", "int8")
    status, result = run(*argv, output=tmp_path / "run.json")
    assert status == 0
    rows = {(row["case"], row["manner"]) for row in result["rows"]}
    assert rows == {(case, manner) for case in ("single", "c8") for manner in ("over HTTP", "in process")}
    assert set(result["figures"]) == {"http_over_engine_single_int8"}
    assert result["start_seconds"][OURS]["rounds"]
