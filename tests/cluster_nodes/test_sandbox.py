import errno
import os
import signal
from pathlib import Path

import pytest

from e2e.cluster.nodes.errors import SandboxError
from e2e.cluster.nodes.sandbox import (
    Mount,
    SandboxSpec,
    check_sandbox,
    explain_refusal,
    run_inside,
    start_sandbox,
)
from e2e.cluster.prechecks import allow_namespaces

pytestmark = pytest.mark.reads("e2e/cluster", "testing/polling.py", "operator/millrace_kubernetes")

PATH = {"PATH": "/usr/bin:/bin"}


def shell(tmp_path: Path, line: str, *mounts: Mount, **more: object) -> SandboxSpec:
    staging = tmp_path / "staging"
    staging.mkdir(exist_ok=True)
    return SandboxSpec(("sh", "-c", line), PATH, staging, mounts, **more)  # type: ignore[arg-type]


def count_open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def run_shell(spec: SandboxSpec) -> tuple[int, str]:
    sandbox = await start_sandbox(spec)
    output = (await sandbox.output.read()).decode()
    return await sandbox.wait(), output


async def test_a_sandbox_runs_here() -> None:
    await check_sandbox()


async def test_a_sandbox_that_cannot_be_started_leaves_no_file_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.executable", str(tmp_path / "no-python"))
    counts: list[int] = []
    for _ in range(3):
        with pytest.raises(FileNotFoundError):
            await start_sandbox(shell(tmp_path, "true"))
        counts.append(count_open_files())
    assert counts[0] == counts[-1]


async def test_a_sandbox_without_a_pipe_leaves_no_file_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise OSError(errno.EMFILE, "too many open files")

    before = count_open_files()
    monkeypatch.setattr("os.pipe", refuse)
    with pytest.raises(OSError, match="too many open files"):
        await start_sandbox(shell(tmp_path, "true"))
    assert count_open_files() == before


async def test_literal_mount_paths_are_true(tmp_path: Path) -> None:
    source = tmp_path / "model"
    source.mkdir()
    (source / "config.json").write_text("{}")
    hosts = tmp_path / "hosts"
    hosts.write_text("127.9.9.9 chat\n")
    mounts = (
        Mount("/models/stories", str(source), readonly=True),
        Mount("/var/run/secrets/kubernetes.io/serviceaccount", str(source)),
        Mount("/etc/hosts", str(hosts)),
        Mount("/etc/millrace/deep", str(source)),
    )
    line = (
        "cat /models/stories/config.json /var/run/secrets/kubernetes.io/serviceaccount/config.json;"
        "cat /etc/hosts;"
        "ls /etc/millrace/deep /etc/passwd; touch /models/stories/x || echo readonly;"
        "hostname; echo $$; ls /tmp; id -u"
    )
    code, output = await run_shell(shell(tmp_path, line, *mounts, hostname="chat-0", uid=65532))
    assert code == 0
    assert output.startswith("{}{}127.9.9.9 chat\n")
    assert "config.json" in output.split("127.9.9.9")[1]
    assert "readonly" in output
    assert output.endswith("chat-0\n1\n65532\n")


async def test_the_host_is_read_only_and_tmp_is_private(tmp_path: Path) -> None:
    line = "echo hi > /tmp/mine && cat /tmp/mine; touch /usr/x || echo no; ls -d /.host"
    code, output = await run_shell(shell(tmp_path, line))
    assert code != 0
    assert output.startswith("hi\n")
    assert "no\n" in output
    assert "mine" not in os.listdir("/tmp")  # noqa: PTH208


async def test_a_covered_folder_is_empty_also_where_it_is_bound(tmp_path: Path) -> None:
    secret = tmp_path / "state" / "keys"
    secret.mkdir(parents=True)
    (secret / "ca.key").write_text("secret")
    line = f"ls -A {secret.parent}; cat {secret}/ca.key; touch {secret.parent}/x || echo no; ls -d {tmp_path}"
    mounts = (Mount(str(tmp_path), str(tmp_path)), Mount(str(secret.parent), kind="cover"))
    code, output = await run_shell(shell(tmp_path, line, *mounts, Mount("/absent", kind="cover")))
    assert code == 0
    assert "secret" not in output
    assert "keys" not in output.replace(str(secret), "")
    assert output.endswith(f"no\n{tmp_path}\n")


async def test_a_writable_volume_is_written_on_the_host(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    code, _ = await run_shell(
        shell(tmp_path, "echo kept > /data/file", Mount("/data", str(data)), readonly_root=True)
    )
    assert code == 0
    assert (data / "file").read_text() == "kept\n"


async def test_exit_status_and_signals(tmp_path: Path) -> None:
    assert await run_shell(shell(tmp_path, "exit 7")) == (7, "")
    sandbox = await start_sandbox(
        shell(tmp_path, "trap 'echo bye; exit 3' TERM; echo up; while :; do sleep 0.05; done")
    )
    assert await sandbox.output.readline() == b"up\n"
    sandbox.send(signal.SIGTERM)
    assert await sandbox.wait() == 3
    stubborn = await start_sandbox(shell(tmp_path, "echo up; sleep 60"))
    await stubborn.output.readline()
    stubborn.send(signal.SIGTERM)
    stubborn.send(signal.SIGKILL)
    assert await stubborn.wait() == 137


async def test_programs_run_inside(tmp_path: Path) -> None:
    sandbox = await start_sandbox(shell(tmp_path, "echo secret > /tmp/file; echo up; sleep 60"))
    await sandbox.output.readline()
    result = await run_inside(sandbox.pid, ["sh", "-c", "cat /tmp/file; exit 4"], PATH, 5)
    assert (result.exit_code, result.output) == (4, "secret")
    with pytest.raises(TimeoutError):
        await run_inside(sandbox.pid, ["sleep", "60"], PATH, 0.1)
    sandbox.send(signal.SIGKILL)
    await sandbox.wait()


async def test_a_missing_program_or_mount_says_so(tmp_path: Path) -> None:
    staging = tmp_path / "s"
    staging.mkdir()
    with pytest.raises(SandboxError, match="cannot run no-such-program: No such file"):
        await start_sandbox(SandboxSpec(("no-such-program",), PATH, staging))
    with pytest.raises(SandboxError, match="/absent on /data"):
        await start_sandbox(SandboxSpec(("true",), PATH, staging, (Mount("/data", "/absent"),)))


def test_a_refusing_kernel_is_explained() -> None:
    told = explain_refusal("unshare", "Operation not permitted")
    assert "user namespaces" in told
    assert told.endswith(allow_namespaces(Path("/proc")))  # as `up` tells it
