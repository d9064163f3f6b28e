"""Every figure in the README is one that a committed benchmark's run printed."""

import json
import re
from pathlib import Path

import pytest

from benchmarks.runtime.table import render_markdown

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
RUNTIME = ROOT / "benchmarks" / "results" / "runtime.json"


def test_the_readmes_figures_are_the_committed_runs() -> None:
    run = json.loads((ROOT / "benchmarks" / "results" / "path.json").read_text())
    section = README.partition("## How fast the path is\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \|[^|]*\| ([^|]+) \|", section, re.MULTILINE)
    assert rows
    assert {name: float(figure.replace(",", "")) for name, figure in rows} == {
        name: run[name] for name, _ in rows
    }


@pytest.mark.skipif(not RUNTIME.exists(), reason="no run of the runtime's benchmark is committed")
def test_the_readmes_comparison_with_other_engines_is_the_committed_runs() -> None:
    run = json.loads(RUNTIME.read_text())
    assert not run["is_quick"]
    assert "\n".join(render_markdown(run)) in README


def test_the_readme_claims_no_comparison_that_is_not_committed() -> None:
    claimed = re.findall(r"`\w+_over_(?:best|memory_limit|python_peers)`", README)
    assert RUNTIME.exists() or not claimed
