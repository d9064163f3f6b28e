"""Where each part comes from: decided by what is on the machine, in a fixed order."""

import os
import shutil
from pathlib import Path

import pytest

from e2e.cluster.settings import Layout, free_ports
from e2e.cluster.sources import (
    MINIMUM_GO,
    MODULE,
    PARTS,
    Origin,
    Part,
    Program,
    build_key,
    cache_folder,
    cached_binary,
    choose_source,
    go_version,
)

pytestmark = pytest.mark.reads("e2e/cluster")

CONTROL_PLANE = PARTS[0]
KUBERNETES = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")


def place(folder: Path, *names: str) -> str:
    folder.mkdir(exist_ok=True)
    for name in names:
        (folder / name).touch(mode=0o755)
    return str(folder)


def versions(kubernetes: str = "v1.34.9", go: str = "go1.26.1") -> "Answers":
    return Answers({"etcd": "etcd Version: 3.6.4", "go": go, **dict.fromkeys(KUBERNETES, kubernetes)})


class Answers(dict[str, str]):
    """What each program would say about its version."""

    def __call__(self, program: Path, _arguments: tuple[str, ...]) -> str:
        return self.get(program.name, "")


def test_the_cache_comes_first(tmp_path: Path) -> None:
    binary = cached_binary(tmp_path, CONTROL_PLANE, build_key(CONTROL_PLANE))
    binary.parent.mkdir(parents=True)
    binary.touch()
    assets = place(tmp_path / "assets", "etcd", *KUBERNETES)

    source = choose_source(CONTROL_PLANE, tmp_path, {"KUBEBUILDER_ASSETS": assets}, versions())

    assert source.origin is Origin.CACHE
    assert source.programs["kubectl"] == binary
    assert not source.must_build


def test_assets_of_the_right_version_are_taken_before_path(tmp_path: Path) -> None:
    assets = place(tmp_path / "assets", "etcd", *KUBERNETES)
    path = place(tmp_path / "path", "etcd", "go", *KUBERNETES)
    environment = {"KUBEBUILDER_ASSETS": assets, "PATH": path}

    source = choose_source(CONTROL_PLANE, tmp_path, environment, versions())

    assert source.origin is Origin.HERE
    assert source.programs["kube-apiserver"] == Path(assets) / "kube-apiserver"


@pytest.mark.parametrize("version", ["v1.32.0", "v1.35.0", ""])
def test_another_version_is_not_taken(tmp_path: Path, version: str) -> None:
    path = place(tmp_path / "path", "etcd", "go", *KUBERNETES)

    source = choose_source(CONTROL_PLANE, tmp_path, {"PATH": path}, versions(kubernetes=version))

    assert source.origin is Origin.GO_HERE
    assert source.must_build


def test_a_part_is_taken_whole_or_not_at_all(tmp_path: Path) -> None:
    path = place(tmp_path / "path", "etcd", "go", *KUBERNETES[:-1])

    assert choose_source(CONTROL_PLANE, tmp_path, {"PATH": path}, versions()).origin is Origin.GO_HERE


@pytest.mark.parametrize(("go", "origin"), [("go1.24.0", Origin.GO_WHEEL), ("go2.0", Origin.GO_HERE)])
def test_an_old_go_is_passed_over(tmp_path: Path, go: str, origin: Origin) -> None:
    path = place(tmp_path / "path", "go")

    assert choose_source(CONTROL_PLANE, tmp_path, {"PATH": path}, versions(go=go)).origin is origin


def test_without_any_go_the_wheel_builds(tmp_path: Path) -> None:
    assert choose_source(CONTROL_PLANE, tmp_path, {"PATH": ""}, versions()).origin is Origin.GO_WHEEL


def test_a_program_without_a_version_is_always_ours(tmp_path: Path) -> None:
    part = Part("certificates", "./certificates", (Program("certificates"),), build_seconds=1)
    path = place(tmp_path / "path", "certificates", "go")

    assert choose_source(part, tmp_path, {"PATH": path}, versions()).origin is Origin.GO_HERE


@pytest.mark.parametrize("variable", ["PATH", "KUBEBUILDER_ASSETS"])
def test_a_clusters_own_links_are_no_programs_of_the_machine(tmp_path: Path, variable: str) -> None:
    layout = Layout(tmp_path / ".millrace")
    layout.state.mkdir()
    links = place(layout.programs, "etcd", *KUBERNETES)
    (tmp_path / "links").symlink_to(links)
    free_ports().save(layout.ports)
    theirs = place(tmp_path / "theirs", "etcd", *KUBERNETES)
    path = os.pathsep.join((links, str(tmp_path / "links"), theirs))

    source = choose_source(CONTROL_PLANE, tmp_path, {"PATH": "", variable: path}, versions())

    assert source.programs["kubectl"] == Path(theirs) / "kubectl"
    alone = {"PATH": place(tmp_path / "go", "go"), "KUBEBUILDER_ASSETS": links}
    assert choose_source(CONTROL_PLANE, tmp_path, alone, versions()).origin is Origin.GO_HERE


def test_a_key_follows_sources_flags_and_machine(tmp_path: Path) -> None:
    module = tmp_path / "module"
    shutil.copytree(MODULE, module)
    key = build_key(CONTROL_PLANE, module)

    assert key == build_key(CONTROL_PLANE, MODULE)
    assert key != build_key(CONTROL_PLANE, module, machine="other")
    (module / "main.go").write_text("package main")
    assert key != build_key(CONTROL_PLANE, module)


def test_the_control_planes_sources_leave_the_other_parts_keys_alone(tmp_path: Path) -> None:
    module = tmp_path / "module"
    shutil.copytree(MODULE, module)
    before = {part.name: build_key(part, module) for part in PARTS}

    (module / "main.go").write_text("package main")

    after = {part.name: build_key(part, module) for part in PARTS}
    assert [name for name in before if before[name] != after[name]] == ["controlplane"]


def test_the_pins_change_every_key(tmp_path: Path) -> None:
    module = tmp_path / "module"
    shutil.copytree(MODULE, module)
    before = [build_key(part, module) for part in PARTS]

    (module / "go.sum").write_text("")

    assert not set(before) & {build_key(part, module) for part in PARTS}


def test_parts_share_no_key() -> None:
    assert len({build_key(part) for part in PARTS}) == len(PARTS)


def test_the_module_needs_no_newer_go_than_we_ask_for() -> None:
    required = next(line for line in (MODULE / "go.mod").read_text().splitlines() if line.startswith("go "))
    assert go_version(required.replace("go ", "go")) == MINIMUM_GO


def test_the_cache_can_be_moved(tmp_path: Path) -> None:
    assert cache_folder({"MILLRACE_CACHE": str(tmp_path)}) == tmp_path
    assert cache_folder({}) == Path.home() / ".cache" / "millrace"


@pytest.mark.parametrize(
    ("text", "version"),
    [("go version go1.26.8 linux/amd64", (1, 26)), ("go version go1.27rc1", (1, 27)), ("nonsense", None)],
)
def test_gos_version_is_read(text: str, version: tuple[int, int] | None) -> None:
    assert go_version(text) == version
