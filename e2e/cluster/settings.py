"""What a local cluster is started with, and where its files are."""

import json
import random
import socket
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
VENV = REPOSITORY / ".venv"
STAMP_NAME = ".installed"
"""The file that the environment holds once it is whole."""
USUAL_STATE = REPOSITORY / ".millrace"
SERVICE_RANGE = "127.96.0.0/16"
API_SERVICE_ADDRESS = "127.96.0.1"
KUBELET_ADDRESS = "127.0.0.2"
PORTS = (15_000, 30_000)
"""Below those that Linux gives to clients (32768 and above). While a part of the cluster is restarted its
clients try again. One of them may get the very port that it tries: then it is connected to itself, and the
part finds its address in use."""
TRIES = 200
DEFAULT_NODES = ("name=gpu-0,gpus=8,accelerators=8,cpu=8,memory=16Gi", "name=cpu-0,cpu=4,memory=8Gi")


@dataclass(frozen=True)
class Ports:
    """The ports on 127.0.0.1 that the parts listen on."""

    api: int
    etcd: int
    etcd_peer: int
    prometheus: int
    controller_manager: int = 0
    scheduler: int = 0

    def save(self, path: Path) -> None:
        """Write them, so that another process finds the cluster."""
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def load(cls, path: Path) -> "Ports | None":
        """Read what `save` wrote; None when there is nothing, or what somebody else wrote."""
        try:
            return cls(**json.loads(path.read_text()))
        except (OSError, ValueError, TypeError):
            return None


def free_ports(api: int = 0, prometheus: int = 0) -> Ports:
    """Choose free ports on 127.0.0.1, keeping those that are asked for (0: any)."""
    with ExitStack() as held:
        found = [_bind(held.enter_context(socket.socket())) for _ in range(6)]
    return Ports(api or found[0], found[1], found[2], prometheus or found[3], found[4], found[5])


def _bind(one: socket.socket) -> int:
    """Bind to a free port of ours. Raises OSError where none was found."""
    for _ in range(TRIES):
        port = random.SystemRandom().randrange(*PORTS)  # whatever seed a test has set
        with suppress(OSError):
            one.bind(("127.0.0.1", port))
            return port
    raise OSError(f"no free port on 127.0.0.1 in {TRIES} tries from {PORTS[0]} to {PORTS[1]}")


@dataclass(frozen=True)
class Layout:
    """The files of a cluster below its state folder."""

    state: Path

    @property
    def keys(self) -> Path:
        """Certificates and keys."""
        return self.state / "keys"

    @property
    def logs(self) -> Path:
        """A log for each part; `down` leaves them."""
        return self.state / "logs"

    @property
    def records(self) -> Path:
        """A record for each process."""
        return self.state / "pids"

    @property
    def programs(self) -> Path:
        """Links to kubectl, helm and the others, for a PATH."""
        return self.state / "bin"

    @property
    def kubeconfig(self) -> Path:
        """An administrator's kubeconfig."""
        return self.state / "kubeconfig"

    @property
    def ports(self) -> Path:
        """The ports in use. A folder that has this file is a cluster's: `down` empties no other."""
        return self.state / "ports.json"

    @property
    def data(self) -> Path:
        """What etcd and Prometheus keep; gone when the cluster is."""
        return self.state / "data"

    @property
    def prometheus_config(self) -> Path:
        """The rendered configuration of Prometheus."""
        return self.state / "prometheus.yml"

    @property
    def nodes(self) -> Path:
        """The process nodes' own folder: pods' files, logs and claims."""
        return self.state / "nodes"


def is_folder_of_links(folder: Path) -> bool:
    """Whether a folder is the `bin` of a cluster's files, of this checkout's or of another's."""
    layout = Layout(folder.resolve().parent)
    return folder.resolve() == layout.programs and Ports.load(layout.ports) is not None


def end_command(state: Path) -> str:
    """Return the command that ends the cluster of a state folder."""
    is_usual = state.absolute() == USUAL_STATE
    return "make down" if is_usual else f"python3 -m e2e.cluster --state-dir {state} down"
