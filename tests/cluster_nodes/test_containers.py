"""The start of a container where something refuses it, and the end of one that is being stopped already."""

from pathlib import Path
from typing import Any

import pytest

from e2e.cluster.nodes.containers import start_container
from e2e.cluster.nodes.errors import SandboxError
from e2e.cluster.nodes.sandbox import SandboxSpec

pytestmark = pytest.mark.reads(
    "e2e/cluster", "e2e/images", "testing/polling.py", "operator/millrace_kubernetes"
)

OUT = {"volumes": [{"name": "out", "emptyDir": {}}]}
MOUNTS = [{"name": "out", "mountPath": "/out"}]


def read_out(bench: Any, worker: Any) -> list[str]:
    """Return the lines of what the container and its hooks wrote."""
    path = bench.node.pod_folder(worker.uid) / "volumes" / "out" / "lines"
    return path.read_text().split() if path.exists() else []


def count_open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def count_refusals(bench: Any) -> int:
    return sum(each["count"] for each in bench.api.objects.values() if each.get("reason") == "Failed")


async def test_a_container_whose_log_cannot_be_written_does_not_start(bench: Any) -> None:
    worker = bench.start("echo start >> /out/lines; sleep 5", spec=OUT, volumeMounts=MOUNTS)
    folder = bench.node.log_folder(worker.uid, "main")
    (folder / "0.log").mkdir(parents=True)
    await bench.until(lambda: count_refusals(bench) >= 2)
    (folder / "0.log").rmdir()
    await bench.until(lambda: read_out(bench, worker))
    assert read_out(bench, worker) == ["start"]


async def test_a_start_that_is_refused_leaves_neither_log_nor_open_file(tmp_path: Path) -> None:
    spec = SandboxSpec(("no-such-program",), {"PATH": "/usr/bin:/bin"}, tmp_path / "staging")
    path = tmp_path / "logs" / "0.log"
    counts: list[int] = []
    for _ in range(3):
        with pytest.raises(SandboxError):
            await start_container(spec, path, "500m")
        counts.append(count_open_files())
    assert counts[0] == counts[-1]
    assert not path.exists()


def begin_restart(bench: Any, grace_seconds: float) -> Any:
    """Start a container that a probe stops at once, and whose preStop hook takes a while."""
    hook = "echo begin >> /out/lines; sleep 1.5; echo end >> /out/lines"
    probe = {"tcpSocket": {"port": 9}, "periodSeconds": 0.05, "failureThreshold": 1}
    return bench.start(
        "trap 'echo term >> /out/lines; exit 0' TERM; while :; do sleep 0.05; done",
        spec=OUT,
        volumeMounts=MOUNTS,
        lifecycle={"preStop": {"exec": {"command": ["sh", "-c", hook]}}},
        livenessProbe={**probe, "terminationGracePeriodSeconds": grace_seconds},
    )


async def test_a_deletion_in_the_midst_of_a_restart_lets_the_hook_end(bench: Any) -> None:
    worker = begin_restart(bench, grace_seconds=10)
    await bench.until(lambda: read_out(bench, worker))
    bench.delete(worker, grace_seconds=10)
    await bench.until(lambda: bench.api.deleted)
    assert read_out(bench, worker) == ["begin", "end", "term"]


async def test_a_deletion_with_a_shorter_grace_does_not_wait_for_a_restarts_hook(bench: Any) -> None:
    worker = begin_restart(bench, grace_seconds=60)
    await bench.until(lambda: read_out(bench, worker))
    bench.delete(worker, grace_seconds=0.2)
    await bench.until(lambda: bench.api.deleted)
    assert "end" not in read_out(bench, worker)


async def test_a_claim_that_is_read_only_is_so_in_every_container(bench: Any, tmp_path: Path) -> None:
    claim = {"spec": {"volumeName": "v"}, "status": {"phase": "Bound"}}
    bench.api.objects["/api/v1/namespaces/prod/persistentvolumeclaims/data"] = claim
    bench.api.objects["/api/v1/persistentvolumes/v"] = {"spec": {"hostPath": {"path": str(tmp_path / "v")}}}
    source = {"claimName": "data", "readOnly": True}
    worker = bench.start(
        "touch /data/file 2>/dev/null || echo readonly",
        spec={"restartPolicy": "Never", "volumes": [{"name": "data", "persistentVolumeClaim": source}]},
        volumeMounts=[{"name": "data", "mountPath": "/data"}],
    )
    await bench.wait(worker, lambda status: status["phase"] == "Succeeded")
    assert bench.log(worker) == "readonly\n"


async def test_a_local_volumes_folder_is_of_the_nodes_own_disk_and_nobody_makes_it(bench: Any) -> None:
    claim = {"spec": {"volumeName": "v"}, "status": {"phase": "Bound"}}
    bench.api.objects["/api/v1/namespaces/prod/persistentvolumeclaims/data"] = claim
    bench.api.objects["/api/v1/persistentvolumes/v"] = {"spec": {"local": {"path": "/var/models/prod"}}}
    worker = bench.start(
        "cat /data/file",
        spec={
            "restartPolicy": "Never",
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
        },
        volumeMounts=[{"name": "data", "mountPath": "/data"}],
    )
    await bench.until(lambda: "FailedMount" in bench.reasons())
    assert bench.api.events[-1]["message"] == (
        'MountVolume.NewMounter initialization failed for volume "v" : path "/var/models/prod" does not exist'
    )
    folder = bench.node.settings.disk_of("n") / "var" / "models" / "prod"
    assert not folder.exists()
    folder.mkdir(parents=True)
    (folder / "file").write_text("of this node")
    await bench.wait(worker, lambda status: status["phase"] == "Succeeded")
    assert bench.log(worker) == "of this node\n"
