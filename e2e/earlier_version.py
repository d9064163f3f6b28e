"""An earlier commit of this repository for a local cluster: its chart, and images with its own tag.

Its programs run in this environment, so the libraries that the commit pins are no part of what it shows.
"""

import re
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.local_cluster import LocalCluster
from e2e.cluster.product import install_chart
from e2e.cluster.settings import REPOSITORY

PACKAGES = ("operator", "runtime", "kernels")
"""The folders of its packages."""


@dataclass(frozen=True)
class EarlierVersion:
    """A commit's files, below `root`."""

    commit: str
    root: Path

    @property
    def images(self) -> Path:
        """The folder of its Containerfiles, for a cluster's nodes."""
        return self.root / "images"

    def install(self, cluster: LocalCluster) -> None:
        """Install its chart as Millrace's release. Raises PartFailedError."""
        tags = [f"images.{name}=millrace/{name}:{self.commit}" for name in ("operator", "runtime")]
        install_chart(cluster, *tags, root=self.root)


def unpack(commit: str, root: Path) -> EarlierVersion:
    """Unpack a commit into an empty folder, its images tagged with the commit.

    Raises CalledProcessError where this repository does not hold it, as a shallow clone of it.
    """
    archive = root / "files.tar"
    subprocess.run(["git", "archive", "--output", archive, commit], cwd=REPOSITORY, check=True)
    with tarfile.open(archive) as files:
        files.extractall(root, filter="data")
    path = ":".join(str(root / package) for package in PACKAGES)
    for file in root.glob("images/*/Containerfile"):
        text = re.sub(r"(-t \S+):\S+", rf"\1:{commit}", file.read_text(), count=1)
        file.write_text(f"{text}ENV PYTHONPATH={path}\n")
    return EarlierVersion(commit, root)
