"""What a run of the whole path says of its origin, and what it reads of `make up`."""

import json
import os
from pathlib import Path

from benchmarks.path.__main__ import show, without_first_up
from benchmarks.path.footprint import measure_disk, read_received
from benchmarks.path.up import Made, describe_first, read_steps, strangers_environment
from e2e.cluster.progress import Laps, progress
from e2e.cluster.settings import free_ports


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


def test_the_steps_are_read_from_what_make_up_says(tmp_path: Path) -> None:
    said: list[str] = []
    with progress("venv", "installing", tmp_path / "log", said.append, "lines"):
        pass
    laps = Laps(iter([0.0, 3.5, 4.25, 9.0]).__next__)
    for name in ("cluster", "chart", "operator and gateway"):
        laps.end(name)
    said.append(f"up in {laps.total:.1f} s: {laps.describe()}")
    steps = read_steps(f"{line}\n" for line in said)
    assert steps == {"venv": 0.0, "cluster": 3.5, "chart": 0.8, "operator and gateway": 4.8}


def test_a_clone_is_not_handed_the_flags_of_the_make_that_measures() -> None:
    assert strangers_environment({"MAKEFLAGS": " -- ARGS=--warm", "ARGS": "--warm", "PATH": ""}) == {
        "PATH": ""
    }


def test_a_stranger_has_this_machines_network_and_none_of_its_settings() -> None:
    network = {
        "GONOSUMDB": "*",
        "GOPROXY": "https://modules.example",
        "PIP_CERT": "/etc/ssl/certs/authority.crt",
        "PIP_INDEX_URL": "https://index.example/simple",
        "http_proxy": "http://proxy.example",
    }
    settings = {
        "GOFLAGS": "-mod=mod",
        "GOPATH": "/go",
        "GOROOT": "/usr/local/go",
        "KUBEBUILDER_ASSETS": "/opt/kubebuilder",
        "PIP_FIND_LINKS": "/opt/wheels",
        "PIP_NO_INDEX": "1",
    }
    theirs = {"GOMODCACHE": "/cache/go", "PIP_CACHE_DIR": "/cache/pip"}
    given = {"PATH": "", **network, **settings, **theirs}
    assert strangers_environment(given) == {"PATH": "", **network, **theirs}


def test_a_strangers_path_has_no_go_and_no_clusters_links(tmp_path: Path) -> None:
    def place(name: str, *programs: str) -> str:
        (tmp_path / name).mkdir(parents=True)
        for program in programs:
            (tmp_path / name / program).touch(mode=0o755)
        return str(tmp_path / name)

    with_go, plain, system = place("go", "go"), place("plain", "git"), place("system", "go", "python3")
    links = place(".millrace/bin", "kubectl")
    free_ports().save(tmp_path / ".millrace" / "ports.json")
    path = os.pathsep.join((with_go, links, plain, system))
    assert strangers_environment({"PATH": path}) == {"PATH": os.pathsep.join((plain, system))}


def test_a_result_says_whether_go_was_fetched() -> None:
    steps = {"go": 9.0, "parts": 1.0}
    fetching = describe_first(Made(10.04, steps))
    assert fetching == {"first_up_seconds": 10.0, "first_up_steps": steps, "first_up_fetched_go": True}
    assert not describe_first(Made(10.04, {"parts": 1.0}))["first_up_fetched_go"]


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
