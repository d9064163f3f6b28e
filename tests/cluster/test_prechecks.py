"""Each refusal is one line that says what to do."""

import socket
from pathlib import Path

import pytest

from e2e.cluster import prechecks
from e2e.cluster.errors import PrecheckFailedError
from e2e.cluster.memory import available_memory
from e2e.cluster.prechecks import (
    MEMORY_TO_RUN,
    allow_namespaces,
    check_compiler,
    check_memory,
    check_namespaces,
    check_port,
    check_tests,
    namespace_setting,
)
from e2e.cluster.processes import ProcessTable
from e2e.cluster.settings import Layout

pytestmark = pytest.mark.reads("e2e/cluster")


def test_too_little_memory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 900 kB\nMemAvailable:    1000000 kB\n")
    available = available_memory(tmp_path / "meminfo")
    assert available == 1_024_000_000
    with pytest.raises(PrecheckFailedError, match=r"^1\.0 GB of memory are available and 3\.0 GB are needed"):
        check_memory(available)
    with pytest.raises(PrecheckFailedError, match=r"the cluster takes 1\.3 GB at first and grows"):
        check_memory(available)


def test_a_running_cluster_needs_no_more_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prechecks, "available_memory", lambda: MEMORY_TO_RUN - 1)
    with pytest.raises(PrecheckFailedError, match="are needed"):
        prechecks.check_machine(tmp_path, tmp_path, must_build=False)
    processes = ProcessTable(Layout(tmp_path).records, Layout(tmp_path).logs)
    processes.start("etcd", ("sleep", "60"), {})
    try:
        prechecks.check_machine(tmp_path, tmp_path, must_build=False)
    finally:
        processes.stop_all()


def test_a_containers_limit_bounds_the_memory(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemAvailable:    8000000 kB\n")
    group = tmp_path / "cgroup"
    group.mkdir()
    assert available_memory(tmp_path / "meminfo", group) == 8_192_000_000
    (group / "memory.max").write_text("max\n")
    (group / "memory.current").write_text("3000000000\n")
    (group / "memory.stat").write_text("anon 1\ninactive_file 600000000\nactive_file 400000000\n")
    assert available_memory(tmp_path / "meminfo", group) == 8_192_000_000
    (group / "memory.max").write_text("4000000000\n")
    assert available_memory(tmp_path / "meminfo", group) == 2_000_000_000


def test_another_system_than_linux_is_refused_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prechecks.sys, "platform", "darwin")
    monkeypatch.setattr(prechecks, "available_memory", lambda: pytest.fail("there is no /proc"))
    with pytest.raises(PrecheckFailedError, match="runs on Linux, or in WSL 2, and this is darwin"):
        prechecks.check_machine(tmp_path, tmp_path, must_build=False)


def test_a_state_folder_is_made_where_its_parents_are_missing_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = tmp_path / "a" / "new" / "deep"
    prechecks.check_writable(state)
    monkeypatch.setattr(prechecks.os, "access", lambda path, _: path != tmp_path)
    with pytest.raises(PrecheckFailedError, match="can't be written; run as its owner or name another"):
        prechecks.check_writable(state)


def test_a_taken_port_is_refused_with_the_flag_that_moves_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(
            PrecheckFailedError, match=rf'port {port} .* make up ARGS="--api-port {port + 1}"'
        ):
            check_port(port, "--api-port")
    check_port(port, "--api-port")


@pytest.mark.parametrize(("port", "other"), [(80, 1024), (65535, 65534)])
def test_a_port_that_can_be_had_is_advised(monkeypatch: pytest.MonkeyPatch, port: int, other: int) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(socket.socket, "bind", refuse)
    with pytest.raises(PrecheckFailedError, match=rf'\(Permission denied\); .* ARGS="--api-port {other}"'):
        check_port(port, "--api-port")


def test_a_machine_without_a_compiler_is_refused_for_the_tests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PrecheckFailedError, match=r"no C\+\+ compiler.*write: sudo apt-get install g\+\+"):
        check_compiler()
    compiler = tmp_path / "g++"
    compiler.touch(mode=0o755)
    check_compiler()
    monkeypatch.setenv("CXX", "another")
    with pytest.raises(PrecheckFailedError, match=r"no C\+\+ compiler \(another\)"):
        check_compiler()


@pytest.mark.parametrize(
    ("name", "value", "setting"),
    [
        ("apparmor_restrict_unprivileged_userns", "1\n", "kernel.apparmor_restrict_unprivileged_userns=0"),
        ("unprivileged_userns_clone", "0\n", "kernel.unprivileged_userns_clone=1"),
        ("unprivileged_userns_clone", "1\n", None),
        ("../user/max_user_namespaces", "0\n", "user.max_user_namespaces=15000"),
        ("../user/max_user_namespaces", "95000\n", None),
    ],
)
def test_the_setting_in_the_way_is_named(tmp_path: Path, name: str, value: str, setting: str | None) -> None:
    for folder in ("kernel", "user"):
        (tmp_path / folder).mkdir()
    (tmp_path / "kernel" / name).write_text(value)
    assert namespace_setting(tmp_path) == setting


@pytest.mark.parametrize("name", ["unshare", "nsenter"])
def test_a_missing_program_is_named_with_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    for other in {"unshare", "nsenter"} - {name}:
        (tmp_path / other).touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PrecheckFailedError, match=f"{name} is missing.*apt-get install util-linux"):
        check_namespaces()


def test_the_tests_need_openssl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "g++").touch(mode=0o755)
    with pytest.raises(PrecheckFailedError, match=r"openssl is missing.*apt-get install openssl"):
        check_tests()
    (tmp_path / "openssl").touch(mode=0o755)
    check_tests()


def test_a_containers_filter_is_told_from_a_setting(tmp_path: Path) -> None:
    (tmp_path / "self").mkdir()
    status = tmp_path / "self" / "status"
    status.write_text("Name:\tx\nSeccomp:\t2\nSeccomp_filters:\t1\n")
    assert "--security-opt seccomp=unconfined" in allow_namespaces(tmp_path)
    status.write_text("Name:\tx\nSeccomp:\t0\n")
    assert "no setting that we know forbids them" in allow_namespaces(tmp_path)
    (tmp_path / "sys" / "user").mkdir(parents=True)
    (tmp_path / "sys" / "user" / "max_user_namespaces").write_text("0\n")
    assert allow_namespaces(tmp_path) == "write: sudo sysctl user.max_user_namespaces=15000"
