"""The command without a cluster: what it says and how it ends."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from e2e.cluster.__main__ import guide, main
from e2e.cluster.errors import PrecheckFailedError
from e2e.cluster.local_cluster import LocalCluster
from e2e.cluster.product import Gateway, pod_reason
from e2e.cluster.settings import REPOSITORY, end_command, free_ports


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


def test_the_guide_can_be_pasted(tmp_path: Path) -> None:
    text = guide(LocalCluster(tmp_path), Gateway("127.96.0.9", 8080))
    assert f"export KUBECONFIG={tmp_path / 'kubeconfig'}\n" in text
    assert f'export PATH={tmp_path / "bin"}:"$PATH"\n' in text
    assert "curl -N http://127.96.0.9:8080/v1/completions" in text
    assert f"end it       python3 -m e2e.cluster --state-dir {tmp_path} down" in text
    assert end_command(REPOSITORY / ".millrace") == "make down"


def test_a_pods_reason_is_its_containers_or_its_schedulers() -> None:
    waiting = {"state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}}}
    assert pod_reason({"status": {"containerStatuses": [waiting]}}) == "CrashLoopBackOff: back-off 10s"
    unscheduled = {"type": "PodScheduled", "status": "False", "message": "0/2 nodes are available"}
    assert pod_reason({"status": {"conditions": [unscheduled]}}) == "0/2 nodes are available"
    assert pod_reason({"status": {}}) == ""
