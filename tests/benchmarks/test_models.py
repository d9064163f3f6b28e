"""The benchmark of models: its server, its turns and its sums."""

import json
from pathlib import Path

import pytest
from safetensors import safe_open

from benchmarks.models.__main__ import main
from benchmarks.models.hub_server import read_range
from benchmarks.models.interrupted import make_contents, measure_kills, share_out
from benchmarks.models.limit import BURST_SECONDS, Limit
from benchmarks.models.on_nodes import Pair, Starts
from benchmarks.models.report import (
    AIMS,
    render,
    summarise_kills,
    summarise_rounds,
    summarise_sizes,
    summarise_starts,
)
from benchmarks.models.shards import INDEX, NUM_SHARDS, StoredModel, find_wrong, write_model
from benchmarks.models.sizes import find_error_percent
from benchmarks.models.transfers import Contestant, Rounds, Turn, measure, serving
from benchmarks.runtime.errors import BenchmarkError
from millrace_fetch.plan.selection import read_shards
from testing.checkpoints.models import MEDIUM
from testing.checkpoints.models import write_model as write_medium
from testing.model_sources.kills import SOURCES, Tale

SLOW = 8e6


@pytest.fixture
def model(tmp_path: Path) -> StoredModel:
    return write_model(tmp_path / "model", 4 << 20)


def test_the_model_is_one_of_safetensors(model: StoredModel) -> None:
    shards = read_shards((model.folder / INDEX).read_bytes())
    assert len(shards) == NUM_SHARDS
    for number, name in enumerate(sorted(shards)):
        with safe_open(model.folder / name, "np") as file:
            assert list(file.keys()) == [f"weights.{number}"]
    assert model.num_bytes > 4 << 20


def test_what_is_absent_or_other_is_wrong(model: StoredModel) -> None:
    assert find_wrong(model, model.folder) == []
    (model.folder / "config.json").write_text("{}")
    (model.folder / INDEX).unlink()
    assert find_wrong(model, model.folder) == ["config.json", INDEX]


def test_all_connections_together_keep_the_limit() -> None:
    limit, now = Limit(100.0), 50.0
    waits = [limit.book(10, now) for _ in range(4)]
    assert waits == pytest.approx([0.0, *(number * 0.1 - BURST_SECONDS for number in (1, 2, 3))])
    assert limit.book(10, now + 10) == 0.0
    assert limit.book(10, now + 10) == pytest.approx(0.1 - BURST_SECONDS)


def test_a_range_ends_with_its_last_byte() -> None:
    assert read_range(None, 10) == (0, 10, False)
    assert read_range("bytes=2-4", 10) == (2, 5, True)
    assert read_range("bytes=2-99", 10) == (2, 10, True)


@pytest.mark.slow
@pytest.mark.reads("benchmarks", "development", "e2e", "kernels", "runtime", "tests/fetch", "tests/fit")
def test_both_fetch_the_same_files_within_the_limit(model: StoredModel, tmp_path: Path) -> None:
    rounds = measure(model, tmp_path, SLOW, 1)
    assert 0 < rounds.fetch[0].bytes_per_second < 1.1 * SLOW
    assert 0.5 * SLOW < rounds.curl[0].bytes_per_second < 1.1 * SLOW < rounds.unlimited_bytes_per_second
    assert 20 < rounds.fetch[0].peak_mb < 200


def test_a_server_below_the_limit_is_told(model: StoredModel, tmp_path: Path) -> None:
    with pytest.raises(BenchmarkError, match="lower --megabytes-per-second"):
        measure(model, tmp_path, 1e12, 1)


def test_a_contestant_that_fails_is_told(model: StoredModel, tmp_path: Path) -> None:
    with serving(model, None) as address:
        absent = Contestant("curl", ["curl", "-sSf", "--noproxy", "*", f"{address}/x"], tmp_path / "curl")
        with pytest.raises(BenchmarkError, match=r"curl ended with 22: .*404"):
            absent.run(model)


def test_kills_are_shared_out() -> None:
    assert share_out(200, 4) == [50, 50, 50, 50]
    assert share_out(6, 4) == [2, 2, 1, 1]
    assert make_contents(1) == make_contents(1) != make_contents(2)


@pytest.mark.slow
@pytest.mark.reads("benchmarks", "development", "e2e", "kernels", "runtime", "tests/fetch", "tests/fit")
def test_kills_are_tried_at_each_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.models.interrupted.SOURCES", {"hub": SOURCES["hub"]})
    tales = measure_kills(2, 1)
    assert (tales["hub"].num_kills, tales["hub"].num_wrong) == (2, 0), tales["hub"].faults
    assert tales["hub"].num_whole > 0


def test_what_is_told_of_a_model_is_near_what_it_takes(tmp_path: Path) -> None:
    assert 0 <= find_error_percent(write_medium(tmp_path, MEDIUM), "Int4") <= 5


def test_the_table_has_each_figure_beside_its_aim() -> None:
    fetch = [Turn(9e7, 90.0), Turn(8e7, 95.0), Turn(9.5e7, 91.0)]
    rounds = Rounds(fetch, [Turn(1e8, 9.0)] * 3, [Turn(5e7, 80.0)] * 3, 1e9)
    found = summarise_rounds(rounds)
    assert (found["fetch_over_curl"], found["lowest"], found["highest"]) == (0.9, 0.8, 0.95)
    assert found["synced_fetch_over_curl"] == 0.5
    assert found["fetch_rss_mb"] == 95.0
    found |= summarise_kills({"hub": Tale(3, 1, 2), "s3": Tale(3, 0, 2)})
    found |= summarise_sizes({"llama, Int4": 0.5, "tied, Int8": 1.5})
    assert (found["kill_resume_wrong"], found["fit_error_percent"]) == (1, 1.5)
    found |= summarise_starts(Starts(1, [Pair(3.0, 2.0), Pair(2.2, 2.0), Pair(2.4, 2.0)]))
    assert (found["downloads_for_ten_pods"], found["warm_apply_to_token_over_local"]) == (1, 1.2)
    table = render(found, "4 GB", {"cores": 2, "cpu": "a CPU"})
    assert [line.split(" | ")[0] for line in table.splitlines()[-len(AIMS) :]] == [
        f"| {name}" for name in AIMS
    ]
    assert "50.0 MB/s, hashed and on the disk; curl 100.0 MB/s, neither" in table


def test_the_fit_can_be_measured_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("benchmarks.models.parts.measure_sizes", lambda: {"llama, Int4": 0.5})
    assert main(["--only", "fit", "--output", str(tmp_path / "fit.json")]) == 0
    assert "| fit_error_percent | 0.5 | <= 5 |" in capsys.readouterr().out
    written = json.loads((tmp_path / "fit.json").read_text())
    assert (written["fit_models"], written.keys() & {"gigabytes", "fetch_over_curl"}) == (1, set())
