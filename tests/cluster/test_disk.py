"""Room is summed for each disk, where the files really go."""

import json
from pathlib import Path

import pytest

from e2e.cluster.disk import (
    DOWNLOADS,
    ENVIRONMENT,
    GO_BUILDS,
    GO_MODULES,
    PARTS,
    RUNNING,
    Need,
    check_disks,
    list_needs,
)
from e2e.cluster.errors import PrecheckFailedError
from e2e.cluster.prechecks import MEMORY_AT_FIRST, MEMORY_TO_RUN
from e2e.cluster.settings import REPOSITORY


def needs(tmp_path: Path, *, must_build: bool, **environ: str) -> dict[str, Need]:
    found = list_needs(tmp_path / "state", tmp_path / "c", tmp_path / "venv", environ, must_build=must_build)
    return {need.what: need for need in found}


def test_gos_caches_are_where_go_puts_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    found = needs(tmp_path, must_build=True)
    assert found["Go's builds"].folder == tmp_path / ".cache" / "go-build"
    assert found["Go's modules"].folder == tmp_path / "go" / "pkg" / "mod"
    moved = needs(tmp_path, must_build=True, GOCACHE="/a", GOMODCACHE="/b", XDG_CACHE_HOME="/c")
    assert {moved["Go's builds"].folder, moved["Go's modules"].folder} == {Path("/a"), Path("/b")}
    assert moved["pip's downloads"].folder == Path("/c/pip")
    assert needs(tmp_path, must_build=True, GOPATH="/g:/h")["Go's modules"].folder == Path("/g/pkg/mod")


def test_what_is_there_needs_no_room(tmp_path: Path) -> None:
    (tmp_path / "venv").mkdir()
    (tmp_path / "venv" / ".installed").touch()
    assert set(needs(tmp_path, must_build=False)) == {"the running cluster"}


def test_an_environment_that_was_half_made_needs_its_room(tmp_path: Path) -> None:
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    assert {"the Python environment", "pip's downloads"} <= set(needs(tmp_path, must_build=False))


def test_needs_of_one_disk_are_summed_and_named(tmp_path: Path) -> None:
    found = [
        *needs(tmp_path, must_build=False, PIP_CACHE_DIR=str(tmp_path / "pip")).values(),
    ]
    total = RUNNING + ENVIRONMENT + DOWNLOADS
    check_disks(found, lambda _: total)
    with pytest.raises(PrecheckFailedError) as caught:
        check_disks(found, lambda _: total - 100_000_000)
    text = str(caught.value)
    assert text.startswith(
        f"the disk of {tmp_path} has 10.0 GB free and 10.1 GB are needed: the running cluster"
    )
    assert f"pip's downloads 2.6 GB in {tmp_path / 'pip'} (PIP_CACHE_DIR)" in text
    assert "\n" not in text


def test_each_disk_is_judged_alone() -> None:
    shm = Path("/dev/shm/millrace-not-yet/deep")
    found = [Need(shm, 10, "a", "A"), Need(Path("/proc/x"), 10, "b", "B")]
    check_disks(found, lambda _: 10)
    with pytest.raises(PrecheckFailedError, match="the disk of /dev/shm has"):
        check_disks(found, lambda place: 9 if place == Path("/dev/shm") else 10)


def test_the_room_that_is_asked_for_is_what_the_committed_run_took_and_a_little_more() -> None:
    run = json.loads((REPOSITORY / "benchmarks" / "results" / "path.json").read_text())
    took = run["first_up_disk_bytes"]
    for asked, measured in (
        (ENVIRONMENT, "environment"),
        (GO_BUILDS, "go_builds"),
        (GO_MODULES, "go_modules"),
    ):
        assert took[measured] <= asked <= 1.2 * took[measured], measured
    assert took["parts"] <= PARTS
    assert run["running_memory_bytes"] <= MEMORY_TO_RUN / 2
    assert run["running_memory_bytes"] == pytest.approx(MEMORY_AT_FIRST, rel=0.1)
