"""What a run of the whole path says of its origin, and what it reads of `make up`."""

import json
import os
from pathlib import Path

import pytest

from benchmarks.path.__main__ import show, without_first_up
from benchmarks.path.footprint import measure_disk, read_received
from benchmarks.path.up import read_steps, strangers_environment
from e2e.cluster import progress
from e2e.cluster.progress import Laps


def test_a_result_names_day_commit_and_cpu(tmp_path: Path) -> None:
    show({"second_up_seconds": 23.2}, tmp_path / "path.json")
    result = json.loads((tmp_path / "path.json").read_text())
    assert {"date", "commit"} <= set(result)
    assert result["machine"]["cpu"]
    assert result["second_up_seconds"] == 23.2


def test_a_run_with_warm_caches_claims_nothing_of_a_first_up() -> None:
    figures = {"first_up_seconds": 9.0, "first_up_disk_bytes": {"environment": 1}, "second_up_seconds": 8.0}
    assert without_first_up(figures) == {
        "first_up_seconds": None,
        "first_up_disk_bytes": None,
        "second_up_seconds": 8.0,
    }


def test_the_steps_are_read_from_what_make_up_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    said: list[str] = []
    with progress.progress("venv", tmp_path / "log", said.append, "lines"):
        pass
    clock = iter([0.0, 3.5, 4.25, 9.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    laps = Laps()
    for name in ("cluster", "chart", "operator and gateway"):
        laps.end(name)
    said.append(f"up in {laps.total:.1f} s: {laps.describe()}")
    steps = read_steps(f"{line}\n" for line in said)
    assert steps == {"venv": 0.0, "cluster": 3.5, "chart": 0.8, "operator and gateway": 4.8}


def test_a_clone_is_not_handed_the_flags_of_the_make_that_measures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAKEFLAGS", " -- ARGS=--warm")
    monkeypatch.setenv("ARGS", "--warm")
    assert not {"MAKEFLAGS", "ARGS"} & set(strangers_environment())


def test_a_files_second_name_takes_no_disk(tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(b"x" * 100_000)
    alone = measure_disk(tmp_path)
    assert alone >= 100_000
    os.link(tmp_path / "one", tmp_path / "two")
    (tmp_path / "link").symlink_to("one")
    assert measure_disk(tmp_path) == alone


def test_what_the_kernel_counts_is_read(tmp_path: Path) -> None:
    table = tmp_path / "dev"
    table.write_text("Inter-|   Receive\n face |bytes packets\n  lo: 500 1 0\neth0:  70 2 0\n eth1: 7 1 0\n")
    assert read_received(table) == 77
