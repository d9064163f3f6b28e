"""The command without a cluster: what it says and how it ends."""

import errno
import json
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from e2e.cluster import __main__ as command
from e2e.cluster import local_cluster
from e2e.cluster.__main__ import guide, main
from e2e.cluster.errors import PartFailedError, PrecheckFailedError
from e2e.cluster.local_cluster import LocalCluster
from e2e.cluster.loopback import bypass_proxies
from e2e.cluster.product import Gateway, pod_reason
from e2e.cluster.settings import REPOSITORY, end_command, free_ports

pytestmark = pytest.mark.reads("Makefile", "e2e/cluster")


def test_status_without_a_cluster_says_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--state-dir", str(tmp_path), "status"]) == 1
    assert "start one with: make up" in capsys.readouterr().err


def test_down_without_a_cluster_is_harmless(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--state-dir", str(tmp_path), "down"]) == 0
    assert capsys.readouterr().out == "down: nothing was running\n"


@pytest.mark.parametrize("ports", [None, "{}", "[1]", '{"web": 80}', "no JSON"])
@pytest.mark.parametrize("command", ["up", "down"])
def test_another_programs_folder_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, ports: str | None
) -> None:
    theirs = [tmp_path / name / "a file" for name in ("bin", "data", "keys", "nodes", "pids")]
    for path in theirs:
        path.parent.mkdir()
        path.write_text("theirs")
    if ports is not None:
        (tmp_path / "ports.json").write_text(ports)
    assert main(["--state-dir", str(tmp_path), command]) == 1
    assert f"{tmp_path / 'data'} is not a cluster's" in capsys.readouterr().err
    assert {path.read_text() for path in theirs} == {"theirs"}


def test_a_cluster_of_an_older_checkout_is_ended_and_not_started(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ports = {"api": 1, "etcd": 2, "etcd_peer": 3, "prometheus": 4}
    (tmp_path / "ports.json").write_text(json.dumps(ports))
    ending = f"python3 -m e2e.cluster --state-dir {tmp_path} down"
    with pytest.raises(PrecheckFailedError, match=f"an older checkout; end it: {ending}"):
        LocalCluster(tmp_path, ports=free_ports()).start()
    assert main(["--state-dir", str(tmp_path), "up"]) == 1
    assert capsys.readouterr().err == (
        f"up failed: the cluster here was started by an older checkout; end it: {ending}\n"
    )
    assert main(["--state-dir", str(tmp_path), "down"]) == 0
    assert capsys.readouterr().out == "down: nothing was running\n"
    assert not list(tmp_path.iterdir())


def test_a_clusters_folder_is_emptied_but_for_its_logs(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path)
    for folder in (cluster.layout.data, cluster.layout.keys, cluster.layout.logs):
        folder.mkdir()
    cluster.ports.save(cluster.layout.ports)
    assert main(["--state-dir", str(tmp_path), "down"]) == 0
    assert list(tmp_path.iterdir()) == [cluster.layout.logs]


@pytest.mark.parametrize("command", ["down", "status"])
def test_the_command_needs_nothing_that_is_installed(tmp_path: Path, command: str) -> None:
    words = [sys.executable, "-S", "-m", "e2e.cluster", "--state-dir", str(tmp_path), command]
    done = subprocess.run(words, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.stdout + done.stderr in {
        "down: nothing was running\n",
        f"status failed: there is no cluster in {tmp_path}; start one with: make up\n",
    }


def test_a_cluster_that_runs_already_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "check_machine", lambda *_, **__: None)
    monkeypatch.setattr(LocalCluster, "start", lambda _: None)
    cluster = LocalCluster(tmp_path)
    cluster.ports.save(cluster.layout.ports)
    cluster.processes.start("nodes", ("sleep", "60"), {})
    began = time.time()
    flags = [f"--api-port={cluster.ports.api}", f"--prometheus-port={cluster.ports.prometheus}"]
    try:
        assert main(["--state-dir", str(tmp_path), "up", "--bare", *flags]) == 0
        found = cluster.processes.running()[0]
    finally:
        cluster.processes.stop_all(seconds=0.0)
    assert found.started_at == pytest.approx(began, abs=5)
    since = time.strftime("%Y-%m-%d %H:%M", time.localtime(found.started_at))
    ending = f"python3 -m e2e.cluster --state-dir {tmp_path} down"
    line = f"cluster: already running since {since}; changed code runs after: {ending}"
    assert capsys.readouterr().out.splitlines()[0] == line
    assert main(["--state-dir", str(tmp_path), "up", "--bare", *flags]) == 0
    assert "already running" not in capsys.readouterr().out


def run_up(state: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`up --only-checks` as make runs it before there is an environment: without installed packages."""
    words = [sys.executable, "-S", "-m", "e2e.cluster", "--state-dir", str(state), "up", "--only-checks"]
    return subprocess.run([*words, *arguments], cwd=REPOSITORY, capture_output=True, text=True, check=False)


def test_a_taken_port_is_found_before_anything_is_downloaded(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        done = run_up(tmp_path, f"--api-port={free_ports().api}", f"--prometheus-port={port}")
    assert done.returncode == 1
    assert done.stderr.startswith(f"up failed: port {port} on 127.0.0.1 can't be used (Address already")
    makefile = (REPOSITORY / "Makefile").read_text()
    recipe = makefile.partition("\nup:")[2].splitlines()
    assert recipe[1:3] == [
        "\t@$(PYTHON) -m e2e.cluster up --only-checks $(ARGS)",
        "\t@$(PYTHON) -m development.bootstrap",
    ]


def test_checks_alone_start_and_leave_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "check_machine", lambda *_, **__: None)
    ports = free_ports()
    flags = [f"--api-port={ports.api}", f"--prometheus-port={ports.prometheus}"]
    assert main(["--state-dir", str(tmp_path), "up", "--only-checks", *flags]) == 0
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("port", ["0", "-1", "65536", "99999", "web"])
def test_what_is_no_port_is_refused_with_those_that_are(tmp_path: Path, port: str) -> None:
    done = run_up(tmp_path, f"--api-port={port}")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].endswith(f"--api-port: {port} is no port; write one from 1 to 65535")


def test_a_node_that_cant_be_read_is_refused_before_anything_is_downloaded(tmp_path: Path) -> None:
    done = run_up(tmp_path, "--node=name=a,gpu=8")
    assert done.returncode == 2
    assert "'gpu=8' is not one of name=, gpus=, accelerators=, cpu=, memory=, each once" in done.stderr


@pytest.mark.parametrize("flags", [["--api-port=9090"], ["--api-port=7443", "--prometheus-port=7443"]])
def test_two_parts_cant_have_one_port(tmp_path: Path, flags: list[str]) -> None:
    done = run_up(tmp_path, *flags)
    assert done.returncode == 1
    assert done.stderr.startswith("up failed: --api-port and --prometheus-port are both ")


def test_a_python_that_is_too_old_is_told_so() -> None:
    pretend = "import runpy, sys; sys.version_info = (3, 9, 2); sys.argv[1:] = ['up']"
    start = f"{pretend}; runpy.run_module('e2e.cluster', run_name='__main__')"
    words = [sys.executable, "-S", "-c", start]
    done = subprocess.run(words, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("Millrace needs Python 3.11 or newer and this is ")


def test_a_kubectl_that_hangs_is_a_part_that_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = LocalCluster(tmp_path)
    cluster.layout.programs.mkdir()
    kubectl = cluster.layout.programs / "kubectl"
    kubectl.write_text("#!/bin/sh\nexec sleep 60\n")
    kubectl.chmod(0o755)
    monkeypatch.setattr(local_cluster, "KUBECTL_SECONDS", 0.1)
    with pytest.raises(PartFailedError, match=r"kubectl get pods: no answer in 0\.1 s"):
        cluster.kubectl("get", "pods")


def test_a_full_disk_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "/full")

    monkeypatch.setattr(command, "prepare", fail)
    assert main(["--state-dir", str(tmp_path), "up"]) == 1
    assert capsys.readouterr().err == "up failed: [Errno 28] No space left on device: '/full'\n"


def test_the_guide_can_be_pasted(tmp_path: Path) -> None:
    text = guide(LocalCluster(tmp_path), Gateway("127.96.0.9", 8080))
    assert f"export KUBECONFIG={tmp_path / 'kubeconfig'}\n" in text
    assert f'export PATH={tmp_path / "bin"}:"$PATH"\n' in text
    assert "curl -N http://127.96.0.9:8080/v1/completions" in text
    assert f"end it       python3 -m e2e.cluster --state-dir {tmp_path} down" in text
    assert end_command(REPOSITORY / ".millrace") == "make down"


def test_without_a_proxy_the_guide_names_none(tmp_path: Path) -> None:
    assert "no_proxy" not in guide(LocalCluster(tmp_path), Gateway("127.96.0.9", 8080))


def answer_once(server: socket.socket) -> None:
    connection, _ = server.accept()
    with connection:
        connection.recv(4096)
        connection.sendall(b"HTTP/1.0 200 OK\r\nContent-Length: 4\r\n\r\nhere")


def ask_by_curl(url: str) -> str:
    done = subprocess.run(["curl", "-s", "-m", "10", url], capture_output=True, text=True, check=False)
    return done.stdout


def ask_by_httpx(url: str) -> str:
    return httpx.get(url, timeout=10).text


HAS_CURL = pytest.mark.skipif(not shutil.which("curl"), reason="there is no curl")


@pytest.mark.usefixtures("dead_proxies")
@pytest.mark.parametrize("ask", [pytest.param(ask_by_curl, marks=HAS_CURL), ask_by_httpx])
def test_behind_a_proxy_what_the_guide_prints_reaches_the_gateway(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ask: Callable[[str], str]
) -> None:
    monkeypatch.setenv("NO_PROXY", "intranet, 10.0.0.0/8")
    with socket.create_server(("127.96.0.9", 0)) as server, ThreadPoolExecutor(1) as answering:
        url = f"http://127.96.0.9:{server.getsockname()[1]}"
        lines = guide(LocalCluster(tmp_path), Gateway("127.96.0.9", server.getsockname()[1])).splitlines()
        bypass = next(line for line in lines if "no_proxy" in line)
        assert lines.index(bypass) < next(index for index, line in enumerate(lines) if "curl" in line)
        assert shlex.split(bypass)[1:] == [
            f"{name}=intranet,10.0.0.0/8,127.0.0.1,127.96.0.9" for name in ("NO_PROXY", "no_proxy")
        ]
        for name, _, value in (word.partition("=") for word in shlex.split(bypass)[1:]):
            monkeypatch.setenv(name, value)
        server.settimeout(10)
        answer = answering.submit(answer_once, server)
        assert ask(url) == "here"
        answer.result()
        assert "no_proxy" not in guide(LocalCluster(tmp_path), Gateway("127.96.0.9", 8080))


def test_who_asks_no_proxy_at_all_needs_no_line() -> None:
    assert bypass_proxies(["127.0.0.1"], {"http_proxy": "http://proxy", "no_proxy": "*"}) is None
    assert bypass_proxies(["127.0.0.1"], {"https_proxy": "http://proxy"}) is None
    assert bypass_proxies(["127.0.0.1"], {"ALL_PROXY": "http://proxy"}) == (
        "export NO_PROXY=127.0.0.1 no_proxy=127.0.0.1"
    )


def test_a_pods_reason_is_its_containers_or_its_schedulers() -> None:
    waiting = {"state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}}}
    assert pod_reason({"status": {"containerStatuses": [waiting]}}) == "CrashLoopBackOff: back-off 10s"
    unscheduled = {"type": "PodScheduled", "status": "False", "message": "0/2 nodes are available"}
    assert pod_reason({"status": {"conditions": [unscheduled]}}) == "0/2 nodes are available"
    assert pod_reason({"status": {}}) == ""
