"""A pod's processes are killed, whichever of them went first."""

import os
import subprocess
from typing import Any

import pytest

from e2e.host_processes import kill_pod_processes, pod_process_ids

pytestmark = pytest.mark.reads("e2e/host_processes.py", "testing/polling.py")

ADDRESS = "192.0.2.201"
POD: dict[str, Any] = {"status": {"podIP": ADDRESS}}


def start() -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "60"], env=os.environ | {"MILLRACE_BIND_ADDRESS": ADDRESS})


def test_a_process_that_went_with_its_parent_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    # The kernel ends a container's other processes with its first one, after they were listed.
    gone, alive = start(), start()
    try:
        assert {*pod_process_ids(POD)} == {gone.pid, alive.pid}
        gone.kill()
        gone.wait()
        monkeypatch.setattr("e2e.host_processes.pod_process_ids", lambda _: [gone.pid, alive.pid])

        assert kill_pod_processes(POD) == 1
        assert alive.wait(10) == -9
    finally:
        for process in (gone, alive):
            process.kill()
            process.wait()
