"""A real disk, with tenants who write anything there."""

import asyncio
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from millrace_fetch.store.folder import Folder
from millrace_node_cache.disk import Disk
from millrace_node_cache.models import ModelKey
from testing.model_sources.processes import until
from tests.node_cache.conftest import MIB, Root, tidy_mode

A, B = ModelKey("shop", "a"), ModelKey("shop", "b")

OF_TEXT = (
    '{"files": {"a": {"size_bytes": "9", "sha256": "", "identity": null}}, '
    '"source": "", "revision": "", "include": []}'
)

HOLD = """
import fcntl, os, sys
lock = os.open(sys.argv[1], os.O_RDWR)
fcntl.flock(lock, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""

DIE = """
import os, shutil, signal, sys
from pathlib import Path
from millrace_node_cache.disk import Disk
from millrace_node_cache.models import ModelKey

unlink = os.unlink
def die(*args, **kwargs):
    unlink(*args, **kwargs)
    os.kill(os.getpid(), signal.SIGKILL)

disk = Disk(Path(sys.argv[1]))
disk.move_away(ModelKey("shop", "a"))
os.unlink = die
disk.sweep()
"""


def test_each_namespace_has_a_folder_of_the_group(root: Root, disk: Disk) -> None:
    disk.prepare(["shop", "search"])
    (root.path / "shop").chmod(0o755)
    disk.prepare(["shop", "search"])
    modes = {stat.S_IMODE((root.path / name).stat().st_mode) for name in ("shop", "search")}
    assert modes == {0o2770}


def test_the_root_has_to_be_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="disk"):
        Disk(tmp_path / "disk").prepare(["shop"])
    assert not (tmp_path / "disk").exists()


def test_models_are_seen_whole_or_not_with_what_they_take(root: Root, disk: Disk) -> None:
    disk.prepare(["shop"])
    root.put(A)
    root.put(B, 3 * MIB, is_whole=False)
    (root.path / "lost+found" / "millrace" / "x").mkdir(parents=True)
    (root.path / "shop" / "millrace" / "a file").touch()
    first, second = disk.list_models({}, 100)
    assert (first.key, first.whole_bytes, first.used_at) == (A, MIB, 100)
    assert (second.key, second.whole_bytes) == (B, None)
    assert MIB <= first.num_bytes < 2 * MIB
    assert 3 * MIB <= second.num_bytes < 4 * MIB
    space = disk.measure()
    assert 0 < space.used_bytes <= space.total_bytes


def test_a_use_outlives_the_process_and_ends_with_the_folder(root: Root, disk: Disk) -> None:
    disk.prepare(["shop"])
    folder = root.put(A)
    disk.list_models({"shop": {A.name: 0}}, 100)
    os.utime(folder, (9e9, 9e9))  # a tenant's own times change nothing
    assert [each.used_at for each in Disk(root.path).list_models({"shop": {}}, 200)] == [100]
    assert [each.used_at for each in disk.list_models({"search": {A.name: 0}}, 300)] == [100]
    disk.move_away(A)
    assert disk.list_models({}, 400) == ()
    root.put(A)
    assert [each.used_at for each in disk.list_models({}, 500)] == [500]


def test_a_lock_that_another_process_holds_is_not_ours(root: Root, disk: Disk) -> None:
    lock = root.put(A) / ".millrace" / "lock"
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with disk.locked(A) as is_ours:
            assert not is_ours
        holder.communicate()
    with disk.locked(A) as is_ours, disk.locked(A) as is_ours_twice:
        assert (is_ours, is_ours_twice) == (True, False)


def test_a_folder_without_a_lock_gets_one_that_a_fetch_would_wait_for(root: Root, disk: Disk) -> None:
    root.folder(A).mkdir(parents=True)
    with disk.locked(A) as is_ours, disk.locked(A) as is_ours_twice:
        assert (is_ours, is_ours_twice) == (True, False)


async def test_a_fetch_that_waits_for_an_evicted_folder_makes_it_again(root: Root, disk: Disk) -> None:
    disk.prepare(["shop"])
    root.put(A)
    lines: list[str] = []
    with disk.locked(A) as is_ours:
        assert is_ours

        def note(text: str) -> None:
            lines.append(text)
            disk.move_away(A)

        entering = Folder(root.folder(A)).locked(note)
        waiting = asyncio.ensure_future(entering.__aenter__())
        await until(lambda: bool(lines))
    await waiting
    assert [path.name for path in root.folder(A).iterdir()] == [".millrace"]
    await entering.__aexit__(None, None, None)
    disk.sweep()
    assert root.rubbish() == []


def test_a_killed_process_leaves_no_folder_that_looks_whole(root: Root, disk: Disk) -> None:
    disk.prepare(["shop"])
    root.put(A)
    done = subprocess.run([sys.executable, "-c", DIE, str(root.path)], check=False)
    assert done.returncode == -9
    assert not root.has(A)
    assert len(root.rubbish()) == 1
    assert Disk(root.path).list_models({}, 1) == ()
    disk.sweep()
    assert root.rubbish() == []


@pytest.mark.parametrize("place", ["shop/millrace", "shop/millrace/a", "shop/millrace/a/.millrace"])
def test_no_link_leads_out_of_a_namespace(root: Root, disk: Disk, place: str) -> None:
    disk.prepare(["shop", "search"])
    victim = root.put(ModelKey("search", "a"))
    link = root.path / place
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(
        {1: root.path / "search" / "millrace", 2: victim, 3: victim / ".millrace"}[place.count("/")]
    )
    seen = disk.list_models({}, 1)
    assert [each.key for each in seen if each.is_whole] == [ModelKey("search", "a")]
    if place.endswith("a/.millrace"):
        with disk.locked(A) as is_ours, disk.locked(ModelKey("search", "a")) as is_theirs:
            assert (is_ours, is_theirs) == (True, True)
        disk.move_away(A)
        disk.sweep()
    assert (victim / ".millrace" / "manifest.json").exists()


@pytest.mark.parametrize(
    "content",
    [
        "{}",
        "[" * 10_000,
        OF_TEXT,
    ],
)
def test_a_marker_that_a_tenant_wrote_is_no_model(root: Root, disk: Disk, content: str) -> None:
    disk.prepare(["shop"])
    (root.put(A) / ".millrace" / "manifest.json").write_text(content)
    assert [each.is_whole for each in disk.list_models({}, 1)] == [False]


def test_a_pipe_in_the_place_of_a_file_keeps_nobody_waiting(root: Root, disk: Disk) -> None:
    disk.prepare(["shop"])
    own = root.put(A) / ".millrace"
    for name in ("manifest.json", "lock"):
        (own / name).unlink()
        os.mkfifo(own / name)
    assert [each.is_whole for each in disk.list_models({}, 1)] == [False]
    with disk.locked(A) as is_ours:
        assert is_ours


AS_USER = """
import sys
from pathlib import Path
from millrace_node_cache.disk import Disk
from millrace_node_cache.models import ModelKey
import os

os.setgid(65532); os.setuid(65532)
disk = Disk(Path(sys.argv[1]))
disk.prepare(["shop"])
folder = Path(sys.argv[1], "shop/millrace/a/deep/er")
folder.mkdir(parents=True)
(folder / "file").touch()
folder.chmod(0o500); folder.parent.chmod(0)
print(disk.list_models({}, 1)[0].is_whole)
disk.move_away(ModelKey("shop", "a"))
disk.sweep()
print(len(list(Path(sys.argv[1], ".millrace/going").iterdir())))
"""


def run_as_another(root: Root, program: str) -> subprocess.CompletedProcess[str]:
    """Run a program that becomes another user, in a disk that this user may write to."""
    root.path.chmod(0o777)
    for parent in root.path.parents:
        if parent.stat().st_uid == os.geteuid() and parent != Path("/"):
            parent.chmod(parent.stat().st_mode | 0o011)
    with tidy_mode(root.path):
        return subprocess.run(
            [sys.executable, "-c", program, str(root.path)], capture_output=True, text=True, check=False
        )


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another")
def test_a_folder_that_lets_nobody_in_goes_like_others(root: Root) -> None:
    done = run_as_another(root, AS_USER)
    assert (done.stdout, done.stderr) == ("False\n0\n", "")


CLOSED = """
import os, sys
from pathlib import Path
from millrace_node_cache.disk import Disk

os.setgid(65532); os.setuid(65532)
root = Path(sys.argv[1])
disk = Disk(root)
disk.prepare(["shop", "search"])
for name, closed in (("a", "."), ("b", ".millrace"), ("c", "deep")):
    folder = root / "shop" / "millrace" / name
    (folder / closed).mkdir(parents=True)
    (folder / closed).chmod(0)
(root / "search" / "millrace").mkdir()
print([(model.key.folder, model.is_closed) for model in disk.list_models({}, 1)])
for namespace in ("shop", "search"):
    disk.check_open(namespace)
(root / "search" / "millrace").chmod(0)
try:
    disk.check_open("search")
except PermissionError as error:
    print(error)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another")
def test_folders_of_unknown_size_are_closed(root: Root) -> None:
    done = run_as_another(root, CLOSED)
    seen = [("a", True), ("b", True), ("c", False)]
    assert (done.stdout, done.stderr) == (f"{seen}\n[Errno 13] Permission denied: 'millrace'\n", "")


def test_names_that_no_fetch_of_ours_makes_are_left_alone(root: Root, disk: Disk) -> None:
    disk.prepare(["shop"])
    root.put(A)
    for name in (b"\xff", b"a\nb", b"A" * 200):
        (root.path / "shop" / "millrace" / os.fsdecode(name)).mkdir()
    assert [model.key for model in disk.list_models({}, 1)] == [A]


def test_a_folder_without_end_hides_no_other_model(root: Root, disk: Disk) -> None:
    disk.prepare(["shop"])
    root.put(B)
    folder = os.open(root.put(A), os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=folder)
        inner = os.open("d", os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = inner
    os.close(folder)
    assert [model.key for model in disk.list_models({}, 1)] == [A, B]
    subprocess.run(["rm", "-rf", str(root.folder(A))], check=True)


def test_a_file_of_many_names_counts_once(root: Root, disk: Disk) -> None:
    disk.prepare(["shop"])
    folder = root.put(A)
    for number in range(50):
        os.link(folder / "model.safetensors", folder / f"again-{number}")
    (model,) = disk.list_models({}, 1)
    assert model.num_bytes < 2 * MIB


def test_what_cannot_be_removed_keeps_nothing_else_from_it(root: Root, disk: Disk) -> None:
    disk.prepare(["shop"])
    root.put(A)
    (root.path / ".millrace" / "going" / "00").symlink_to("/")
    (root.path / ".millrace" / "going" / "01").write_text("a file")
    disk.move_away(A)
    disk.sweep()
    assert root.rubbish() == []
