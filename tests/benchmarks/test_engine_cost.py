"""What a step of the engine itself costs, as a command."""

import json
import sys
from pathlib import Path

import pytest

from benchmarks.engine import against
from benchmarks.engine.__main__ import STEPS, main
from benchmarks.runtime.former import Former


@pytest.mark.parametrize("steps", [STEPS.start - 1, STEPS.stop])
def test_steps_that_no_sequence_has_are_refused(steps: int, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--steps", str(steps)])
    assert f"--steps {steps}: take 10 to 993" in capsys.readouterr().err


def test_a_result_names_commit_and_cpu(tmp_path: Path) -> None:
    main(["--steps", str(STEPS.start), "--output", str(tmp_path / "engine.json")])
    result = json.loads((tmp_path / "engine.json").read_text())
    assert {"date", "commit", "machine", "step_microseconds_32"} <= set(result)
    assert result["machine"]["cpu"]


def test_a_former_commits_engine_is_measured_in_turn_with_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    tell = (
        "import json, os; p = 'PYTHONPATH' in os.environ and 'millrace-bench-' in os.environ['PYTHONPATH']; "
    )
    tell += f"print(json.dumps(dict.fromkeys({against.NAMES}, 2.0 if p else 3.0)))"
    monkeypatch.setattr(against, "COMMAND", (sys.executable, "-c", tell))
    monkeypatch.setattr(against, "write_former", Former)
    found = against.measure_against("abc", 10)
    assert found == {"step_microseconds_32_over_itself": 1.5, "step_microseconds_256_over_itself": 1.5}


def test_a_commit_that_there_is_not_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--against", "nonsense"])
    assert "no commit nonsense" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.reads("benchmarks", "kernels", "runtime/millrace_runtime")
def test_as_many_steps_as_a_sequence_has_can_be_measured(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--steps", str(STEPS.stop - 1)])
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["step_microseconds_32"] > 0
