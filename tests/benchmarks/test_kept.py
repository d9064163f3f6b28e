"""A run that was cut off goes on where it was; results of something else are refused."""

from pathlib import Path

import pytest

from benchmarks.autoscaler.jobs import Bench, Job, Result
from benchmarks.autoscaler.kept import Kept, KeptError
from benchmarks.autoscaler.runner import Runner
from millrace_operator.autoscaler.simulate.policies.contestants import STATIC

ONE = Job("W1", STATIC, 3.0, "tune")
OTHER = Job("W1", STATIC, 4.0, "tune", 30.0, 30.0, "outage")
RESULT = Result(0.99, 3.0, 0, 0, 0, 0, 60.0)


def test_what_is_known_is_not_run_again(tmp_path: Path) -> None:
    path = tmp_path / "kept"
    Kept(path, "a").add(ONE, RESULT)
    runner = Runner(Bench(None, is_short=True), 1, Kept(path, "a"))
    assert runner.run([ONE], "tuning") == {ONE: RESULT}


def test_a_line_that_was_cut_off_is_left_out_and_what_follows_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "kept"
    kept = Kept(path, "a")
    kept.add(ONE, RESULT)
    kept.add(OTHER, RESULT)
    path.write_text(path.read_text()[:-20])
    assert Kept(path, "a").results == {ONE: RESULT}
    Kept(path, "a").add(OTHER, RESULT)
    assert Kept(path, "a").results == {ONE: RESULT, OTHER: RESULT}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no results of this benchmark"),
        ("{}\n", "has no results of this benchmark"),
        ('{"origin": "a"}\n{"job": {"workload": 1}}\n', "has no results of this benchmark"),
        ('{"origin": "b"}\n', "is of b, and this run is of a: name another file"),
    ],
)
def test_results_of_something_else_are_refused_and_kept(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "kept"
    path.write_text(text)
    with pytest.raises(KeptError, match=said):
        Kept(path, "a")
    assert path.read_text() == text
