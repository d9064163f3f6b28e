"""Every figure in the README is one that a committed benchmark's run printed."""

import json
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_readmes_figures_are_the_committed_runs() -> None:
    run = json.loads((ROOT / "benchmarks" / "results" / "path.json").read_text())
    rows = re.findall(r"^\| `(\w+)` \|[^|]*\| ([^|]+) \|", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert rows
    assert {name: float(figure.replace(",", "")) for name, figure in rows} == {
        name: run[name] for name, _ in rows
    }
