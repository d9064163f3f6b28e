"""A disk that is really full, at each moment that something is written: a file system of its own says so."""

import asyncio
import hashlib
import json
import os
import shutil
import subprocess
import sys
from asyncio.subprocess import PIPE
from pathlib import Path
from typing import Any

import pytest

from testing.model_sources.servers import FakeHub
from tests.fetch.conftest import NEEDED, SHARDS, make_model
from tests.fetch.full_disk import KEPT_BYTES, MOMENTS

REPOSITORY = Path(__file__).resolve().parents[2]
ALONE = ("unshare", "--user", "--map-root-user", "--mount")


def may_mount() -> bool:
    """Whether this machine lets a process have a disk of its own."""
    if shutil.which("unshare") is None:
        return False
    mounting = [*ALONE, "mount", "-t", "tmpfs", "none", "/tmp"]
    return subprocess.run(mounting, capture_output=True, check=False).returncode == 0


async def fetch_on_full_disk(moment: str, hub: FakeHub, disk: Path) -> dict[str, Any]:
    command = (sys.executable, "-m", "tests.fetch.full_disk", moment)
    process = await asyncio.create_subprocess_exec(
        *(*ALONE, *command, "hf://org/m", "--to", str(disk), "--connections", "1"),
        env=os.environ | {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(disk.parent)},
        cwd=REPOSITORY,
        stdout=PIPE,
        stderr=PIPE,
    )
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    found: dict[str, Any] = json.loads(out)
    return found


@pytest.mark.skipif(not may_mount(), reason="this machine refuses namespaces")
@pytest.mark.parametrize("moment", MOMENTS)
async def test_a_disk_without_room_is_named_and_what_came_is_kept(moment: str, tmp_path: Path) -> None:
    contents, disk = make_model(2 * KEPT_BYTES), tmp_path / "disk"
    disk.mkdir()
    async with FakeHub(contents) as hub:
        found = await fetch_on_full_disk(moment, hub, disk)
    first, (words,) = found["first"], found["first"]["said"]
    assert (first["status"], found["isMarked"]) == (1, False)
    assert words.startswith(f"millrace fetch: no space left for {disk}/model")
    assert words.endswith("(No space left on device): make room and run it again; it continues from here")
    assert found["second"]["status"] == 0, found["second"]
    assert found["files"] == {name: hashlib.sha256(contents[name]).hexdigest() for name in NEEDED}
    assert hub.large.sent[SHARDS[0]] == len(contents[SHARDS[0]])
    asked_again = [(name, start >= KEPT_BYTES) for name, start, _ in hub.large.ranges]
    assert asked_again == ([(SHARDS[1], True)] if moment == "data" else [])
    assert moment == "data" or hub.large.sent[SHARDS[1]] == len(contents[SHARDS[1]])
