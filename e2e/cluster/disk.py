"""What a first `make up` takes of each disk, summed before anything is downloaded."""

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.errors import PrecheckFailedError
from e2e.cluster.settings import STAMP_NAME

RUNNING = 1_000_000_000
"""Bytes of a running cluster: etcd, Prometheus, logs, pods' volumes."""
ENVIRONMENT = 6_500_000_000
"""6.0 GB stay in .venv, most of it torch with its CUDA libraries."""
DOWNLOADS = 2_600_000_000
"""What pip keeps of them."""
GO_BUILDS = 3_800_000_000
"""Where 3.5 GB stay, and 1.4 GB of modules."""
GO_MODULES = 1_500_000_000
PARTS = 700_000_000
"""The programs, and Go itself where it comes from PyPI."""


@dataclass(frozen=True)
class Need:
    """Room that something takes below a folder, which need not exist yet."""

    folder: Path
    num_bytes: int
    what: str
    setting: str
    """How it is put elsewhere."""


def list_needs(
    state: Path, cache: Path, environment: Path, environ: Mapping[str, str], *, must_build: bool
) -> list[Need]:
    """Return what is still to be written: `environment` unless it is whole, builds where one must be."""
    needs = [Need(state, RUNNING, "the running cluster", "--state-dir")]
    caches = Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    if not (environment / STAMP_NAME).exists():
        pip = Path(environ.get("PIP_CACHE_DIR") or caches / "pip")
        needs += [
            Need(environment.parent, ENVIRONMENT, "the Python environment", "another checkout"),
            Need(pip, DOWNLOADS, "pip's downloads", "PIP_CACHE_DIR"),
        ]
    if must_build:
        modules = environ.get("GOPATH", str(Path.home() / "go")).split(":")[0]
        needs += [
            Need(Path(environ.get("GOCACHE") or caches / "go-build"), GO_BUILDS, "Go's builds", "GOCACHE"),
            Need(
                Path(environ.get("GOMODCACHE") or Path(modules) / "pkg" / "mod"),
                GO_MODULES,
                "Go's modules",
                "GOMODCACHE",
            ),
            Need(cache, PARTS, "the cluster's parts", "MILLRACE_CACHE"),
        ]
    return needs


def check_disks(needs: list[Need], free: Callable[[Path], int] | None = None) -> None:
    """Refuse where the needs of one file system are more than it has free. Raises PrecheckFailedError."""
    by_device: dict[int, list[Need]] = {}
    for need in needs:
        by_device.setdefault(nearest_existing(need.folder).stat().st_dev, []).append(need)
    for together in by_device.values():
        place = nearest_existing(together[0].folder)
        available = free(place) if free else shutil.disk_usage(place).free
        wanted = sum(need.num_bytes for need in together)
        if available < wanted:
            parts = "; ".join(f"{need.what} {_gigabytes(need.num_bytes)} in {need.folder} ({need.setting})"
                              for need in together)  # fmt: skip
            raise PrecheckFailedError(
                f"the disk of {place} has {_gigabytes(available)} free and {_gigabytes(wanted)} are needed: "
                f"{parts}. Free some, or put a part elsewhere by what stands in brackets"
            )


def nearest_existing(folder: Path) -> Path:
    """Return the folder, or the nearest above it that is there."""
    folder = folder.absolute()
    return folder if folder.exists() else nearest_existing(folder.parent)


def _gigabytes(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.1f} GB"
