"""What others' rules did in an earlier run, so that after a change of ours alone only ours is run again.

Tuning the others takes most of an hour. Their results follow from their rules, the simulator and a seed, so
they are the same while these are.
"""

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.autoscaler.jobs import Job, Result
from millrace_operator.autoscaler.simulate.policies.contestants import OURS

ROOT = Path(__file__).resolve().parents[2]
SOURCES = (
    "operator/millrace_operator/autoscaler/simulate",
    "operator/millrace_operator/autoscaler/capacity/latency_model.py",
    "operator/millrace_operator/autoscaler/capacity/normal_equations.py",
    "benchmarks/autoscaler/jobs.py",
)
"""What others' results follow from."""


class ReuseError(Exception):
    """An earlier run can't be used; the text says what to do."""


class Earlier(NamedTuple):
    """An earlier run's results of others."""

    commit: str
    tuning: dict[Job, Result]
    results: dict[Job, Result]


def read_earlier(path: Path) -> Earlier:
    """Return what others did in a run. Raises ReuseError where that may be no longer so."""
    try:
        run = json.loads(path.read_text())
        commit = run.get("others_commit", run["commit"])
        tuning = {_read_job(one, "tune"): _read_result(one) for one in run["sweeps"]}
        results = {_read_job(one, "report"): _read_result(one) for one in run["runs"]}
        is_short = run["short"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ReuseError(f"{path} is no result of this benchmark: {error!r}") from error
    if is_short:
        raise ReuseError(f"{path} is a short run: run without --reuse")
    _check(commit)
    return Earlier(commit, tuning, {job: one for job, one in results.items() if job.policy != OURS})


def _check(commit: str) -> None:
    words = ["git", "diff", "--quiet", commit, "--", *SOURCES]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        why = done.stderr.strip() or "others' rules or the simulator have changed"
        raise ReuseError(f"since commit {commit}: {why}; run without --reuse")


def _read_job(one: Mapping[str, Any], part: Any) -> Job:
    other = {name: one[name] for name in ("cold_start", "scrape", "fault") if name in one}
    return Job(one["workload"], one["policy"], one["knob"], part, **other)


def _read_result(one: Mapping[str, Any]) -> Result:
    downs, reversals = one.get("scale_downs_at_peak", 0), one.get("reversals", 0)
    return Result(one["attainment"], one["average_replicas"], reversals, 0, 0, downs, 1.0)
