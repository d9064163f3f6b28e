"""An earlier run's results of others: used again as they are, and refused where they may be no longer so."""

import json
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest

from benchmarks.autoscaler import __main__ as autoscaler
from benchmarks.autoscaler import reuse
from benchmarks.autoscaler.jobs import Bench, Job, Result
from benchmarks.autoscaler.reuse import ReuseError, read_earlier
from benchmarks.autoscaler.runner import Runner
from millrace_operator.autoscaler.simulate.policies.contestants import CLAIRVOYANT, OURS, STATIC

VALUES = {STATIC: (3.0, 4.0)}


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A whole run of ours and a fixed count, as if it were no short one."""
    runner = Runner(Bench(None, is_short=True), 1)
    monkeypatch.setattr(autoscaler, "PEERS", {STATIC: autoscaler.PEERS[STATIC]})
    outcome, tuning = autoscaler.compare(runner, ["W1"], VALUES)
    path = tmp_path / "run.json"
    run = {
        "commit": read_head(),
        "short": False,
        "runs": autoscaler.describe_runs(outcome),
        "sweeps": autoscaler.flatten_sweeps(tuning),
    }
    path.write_text(json.dumps(run))
    return path


def read_head() -> str:
    words = ["git", "rev-parse", "HEAD"]
    return subprocess.run(words, cwd=reuse.ROOT, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.long
@pytest.mark.slow
def test_only_ours_is_run_again_and_all_else_is_as_it_was(
    written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reuse, "SOURCES", ("LICENSE",))
    earlier, ran = read_earlier(written), set[Job]()

    class Watched(Runner):
        def run(self, jobs: Iterable[Job], title: str) -> dict[Job, Result]:
            ran.update(jobs)
            return super().run(jobs, title)

    outcome, _ = autoscaler.compare(Watched(Bench(None, is_short=True), 1), ["W1"], VALUES, earlier)
    assert {job.policy for job in ran} == {OURS}
    runs = {json.dumps(one, sort_keys=True) for one in autoscaler.describe_runs(outcome)}
    assert runs == {json.dumps(one, sort_keys=True) for one in json.loads(written.read_text())["runs"]}
    assert outcome.of(CLAIRVOYANT, "W1").average_replicas > 0


def test_a_run_of_other_rules_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    for text, said in (
        ("{", "is no result of this benchmark"),
        ("{}", "is no result of this benchmark"),
        ('{"commit": "0", "short": true, "runs": [], "sweeps": []}', "is a short run"),
        (
            '{"commit": "no-such-commit", "short": false, "runs": [], "sweeps": []}',
            "since commit no-such-commit",
        ),
    ):
        path.write_text(text)
        with pytest.raises(ReuseError, match=said):
            read_earlier(path)


def test_a_run_of_before_the_simulator_changed_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.json"
    path.write_text(json.dumps({"commit": "HEAD", "short": False, "runs": [], "sweeps": []}))
    monkeypatch.setattr(reuse, "ROOT", tmp_path)
    for words in (("init", "-q"), ("config", "user.email", "a@b"), ("config", "user.name", "a")):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    (tmp_path / "rule.py").write_text("1")
    monkeypatch.setattr(reuse, "SOURCES", ("rule.py",))
    subprocess.run(["git", "add", "rule.py"], cwd=tmp_path, check=True)
    subprocess.run(["git", "commit", "-qm", "a"], cwd=tmp_path, check=True)
    assert read_earlier(path).commit == "HEAD"
    (tmp_path / "rule.py").write_text("2")
    with pytest.raises(ReuseError, match="others' rules or the simulator have changed"):
        read_earlier(path)
