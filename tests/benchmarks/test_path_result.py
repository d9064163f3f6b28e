"""What a run of the whole path says of its origin."""

import json
from pathlib import Path

from benchmarks.path.__main__ import show


def test_a_result_names_day_commit_and_cpu(tmp_path: Path) -> None:
    show({"second_up_seconds": 23.2}, tmp_path / "path.json")
    result = json.loads((tmp_path / "path.json").read_text())
    assert {"date", "commit"} <= set(result)
    assert result["machine"]["cpu"]
    assert result["second_up_seconds"] == 23.2
