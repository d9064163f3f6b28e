"""The Hub's own library beside ours: it finds the same files at the same server."""

import asyncio
import os
import sys
from asyncio.subprocess import PIPE
from pathlib import Path

from testing.model_sources.kills import hash_file, list_files
from testing.model_sources.servers import FakeHub
from tests.fetch.conftest import NEEDED, Fetcher

_DOWNLOAD = """
import sys
from huggingface_hub import snapshot_download
for revision in sys.argv[2:]:
    snapshot_download("org/m", revision=revision, local_dir=f"{sys.argv[1]}/{revision}")
"""


async def download(hub: FakeHub, folder: Path, *revisions: str) -> None:
    """Fetch all files of each revision with huggingface_hub, into folders of that name."""
    settings = {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(folder / "hf"), "HF_HUB_DISABLE_XET": "1"}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _DOWNLOAD, str(folder), *revisions),
        env=os.environ | settings,
        stdout=PIPE,
        stderr=PIPE,
    )
    _, err = await process.communicate()
    assert process.returncode == 0, err.decode()


def read_hashes(folder: Path) -> dict[str, str]:
    """Return the hash of each file, without what the library has there for itself."""
    return {name: hash_file(folder / name) for name in list_files(folder) if not name.startswith(".cache/")}


async def test_ours_has_the_files_that_the_library_has_and_of_them_those_that_a_replica_reads(
    fetcher: Fetcher, hub: FakeHub, tmp_path: Path
) -> None:
    """Of a branch; what it had before is asked for by its commit."""
    first = hub.commit
    hub.move_on("2" * 40, {"config.json": b'{"model_type": "other"}'})
    await download(hub, tmp_path, "main", first)
    theirs = {revision: read_hashes(tmp_path / revision) for revision in ("main", first)}
    assert theirs["main"] != theirs[first]
    for revision, files in theirs.items():
        assert set(files) == set(hub.files.contents)
        await fetcher.fetch(f"hf://org/m@{revision}")
        assert read_hashes(fetcher.folder) == {name: files[name] for name in NEEDED}
