"""The start of a container where something refuses it, and the end of one that is being stopped already."""

from pathlib import Path
from typing import Any

import pytest

from e2e.cluster.nodes.containers import start_container
from e2e.cluster.nodes.errors import SandboxError
from e2e.cluster.nodes.sandbox import SandboxSpec

OUT = {"volumes": [{"name": "out", "emptyDir": {}}]}
MOUNTS = [{"name": "out", "mountPath": "/out"}]


def read_out(bench: Any, worker: Any) -> list[str]:
    """Return the lines of what the container and its hooks wrote."""
    path = bench.node.pod_folder(worker.uid) / "volumes" / "out" / "lines"
    return path.read_text().split() if path.exists() else []


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
        counts.append(len(list(Path("/proc/self/fd").iterdir())))
    assert counts[0] == counts[-1]
    assert not path.exists()
