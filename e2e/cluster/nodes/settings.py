"""The options on a node process's command line, parsed once."""

from dataclasses import dataclass, field
from pathlib import Path

from e2e.cluster.nodes.errors import SettingsError
from e2e.cluster.nodes.quantities import parse_quantity

SOURCE_ROOT = Path(__file__).resolve().parents[3]
"""The folder that holds e2e/ and images/."""
GPU_RESOURCE = "nvidia.com/gpu"
CLUSTER_DOMAIN = "cluster.local"
"""The end of Services' full names."""
MAX_PODS = 110
_KEYS = ("name", "gpus", "accelerators", "cpu", "memory")
ACCELERATOR_RESOURCE = "example.com/accelerator"
"""Counted as GPUs are, and used by nobody: a replica that asks for a GPU ends without one."""


@dataclass(frozen=True)
class NodeSpec:
    """One Node to register."""

    name: str
    cpu: str = "4"
    memory: str = "8Gi"
    gpus: int = 0
    accelerators: int = 0

    @property
    def capacity(self) -> dict[str, str]:
        """As in the Node's status; also what can be allocated."""
        capacity = {"cpu": self.cpu, "memory": self.memory, "pods": str(MAX_PODS)}
        devices = {GPU_RESOURCE: self.gpus, ACCELERATOR_RESOURCE: self.accelerators}
        counted = {name: str(count) for name, count in devices.items() if count}
        return capacity | {"ephemeral-storage": "20Gi"} | counted


@dataclass(frozen=True)
class Timing:
    """Kubelet's own periods, in seconds."""

    backoff_first: float = 10.0
    backoff_most: float = 300.0
    backoff_reset: float = 600.0
    """A container that ran this long starts again without delay."""
    lease_period: float = 10.0
    lease_duration: float = 40.0
    node_status_period: float = 60.0
    volume_refresh_period: float = 60.0


@dataclass(frozen=True)
class Settings:
    """All settings of a node process."""

    kubeconfig: Path
    state_dir: Path
    nodes: tuple[NodeSpec, ...]
    image_dirs: tuple[Path, ...] = (SOURCE_ROOT / "images", SOURCE_ROOT / "e2e" / "images")
    """Folders of NAME/Containerfile."""
    further_images: tuple[Path, ...] = ()
    """Such folders of other checkouts, whose programs pods run."""
    hidden: tuple[Path, ...] = ()
    """Folders that no pod may see."""
    kubelet_address: str = "127.0.0.2"
    """Where the API server asks for logs; the port is any free one, and the Nodes' status says which."""
    timing: Timing = field(default_factory=Timing)

    def disk_of(self, node: str) -> Path:
        """Return the folder that is a Node's disk: paths of local volumes are below it."""
        return disk_of(self.state_dir, node)


def disk_of(state_dir: Path, node: str) -> Path:
    """Return the folder that is a Node's disk, by the folder of its process."""
    return state_dir / "disks" / node


def parse_node(text: str) -> NodeSpec:
    """Read `name=gpu-0,gpus=8,cpu=8,memory=16Gi`. Raises SettingsError, which says what to write."""
    values: dict[str, str] = {}
    for part in text.split(","):
        key, equals, value = part.partition("=")
        if key not in _KEYS or not equals or not value or key in values:
            raise SettingsError(
                f"--node {text}: {part!r} is not one of name=, gpus=, accelerators=, cpu=, memory=, each once"
            )
        values[key] = value
    if "name" not in values:
        raise SettingsError(f"--node {text}: it needs a name, as in name=gpu-0,gpus=8,cpu=8,memory=16Gi")
    return _check_node(text, values)


def _check_node(text: str, values: dict[str, str]) -> NodeSpec:
    for key in ("cpu", "memory"):
        try:
            parse_quantity(values.get(key, "1"))
        except ValueError as error:
            raise SettingsError(f"--node {text}: {key}: {error}") from error
    counts = {key: values.pop(key, "0") for key in ("gpus", "accelerators")}
    for key, count in counts.items():
        if not count.isdigit():
            raise SettingsError(f"--node {text}: {key} is a whole number")
    gpus, accelerators = map(int, counts.values())
    return NodeSpec(**values, gpus=gpus, accelerators=accelerators)
