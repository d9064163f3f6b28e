"""What a step of the engine itself costs, as a command."""

import json
from pathlib import Path

import pytest

from benchmarks.engine.__main__ import STEPS, main


@pytest.mark.parametrize("steps", [STEPS.start - 1, STEPS.stop])
def test_steps_that_no_sequence_has_are_refused(steps: int, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--steps", str(steps)])
    assert f"--steps {steps}: take 10 to 1008" in capsys.readouterr().err


def test_a_result_names_commit_and_cpu(tmp_path: Path) -> None:
    main(["--steps", str(STEPS.start), "--output", str(tmp_path / "engine.json")])
    result = json.loads((tmp_path / "engine.json").read_text())
    assert {"date", "commit", "machine", "step_microseconds_32"} <= set(result)
    assert result["machine"]["cpu"]


@pytest.mark.slow
@pytest.mark.reads("benchmarks", "kernels", "runtime/millrace_runtime")
def test_as_many_steps_as_a_sequence_has_can_be_measured(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--steps", str(STEPS.stop - 1)])
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["step_microseconds_32"] > 0
