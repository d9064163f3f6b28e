"""A local cluster: its parts started in order, watched until each is ready, and ended.

For tests, `LocalCluster(state).start()` and `stop()`; its processes end with the process that started
them. `make up` starts it detached instead, and `make down` finds it by its state folder.
"""

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path

from e2e.cluster.api_reader import ApiReader, has_condition
from e2e.cluster.build import find_plugin, get_programs, link_programs
from e2e.cluster.certificates import make_certificates
from e2e.cluster.controlplane import (
    PART_MEMORY,
    Command,
    api_server_command,
    client_context,
    controller_manager_command,
    etcd_command,
    is_api_ready,
    is_etcd_ready,
    is_healthy,
    scheduler_command,
)
from e2e.cluster.errors import PartFailedError, PrecheckFailedError
from e2e.cluster.kubeconfig import render_kubeconfig, write_private
from e2e.cluster.processes import ProcessTable, last_line
from e2e.cluster.progress import Say
from e2e.cluster.prometheus import (
    SCRAPE_SECONDS,
    is_prometheus_ready,
    prometheus_command,
    render_prometheus,
)
from e2e.cluster.settings import (
    DEFAULT_NODES,
    KUBELET_ADDRESS,
    REPOSITORY,
    Layout,
    Ports,
    end_command,
    free_ports,
)

START_SECONDS = 90.0
KUBECTL_SECONDS = 240.0


class LocalCluster:
    """One cluster, whose files are below `state`. Start and restart it from any thread, one at a time."""

    def __init__(
        self,
        state: Path,
        *,
        nodes: Sequence[str] = DEFAULT_NODES,
        images: Sequence[Path] = (),
        scrape_seconds: int = SCRAPE_SECONDS,
        ports: Ports | None = None,
        detached: bool = False,
        say: Say = print,
        part_memory: str = PART_MEMORY,
    ) -> None:
        """`nodes` are the words of the process nodes' `--node`; none: a control plane alone.

        `images` are folders of further Containerfiles, each in the checkout that its programs come from.
        `scrape_seconds` is the time between two scrapes of Prometheus. `part_memory` is the GOMEMLIMIT of
        each part; one that needs more is slow.
        """
        self.layout = Layout(state.absolute())
        self.nodes = tuple(nodes)
        self.images = tuple(images)
        self.scrape_seconds = scrape_seconds
        self.processes = ProcessTable(self.layout.records, self.layout.logs)
        self.ports = self._choose_ports(ports)
        self._detached = detached
        self._say = say
        self._part_memory = part_memory
        self._programs: Mapping[str, Path] = {}
        self._reaper: subprocess.Popen[bytes] | None = None
        self._api: ApiReader | None = None
        self._api_lock = threading.Lock()

    def _choose_ports(self, asked: Ports | None) -> Ports:
        """Return the ports of what runs; where nothing runs, those that are asked for."""
        known = Ports.load(self.layout.ports)
        if known and (asked is None or self.processes.running()):
            return known
        return asked or free_ports()

    @property
    def kubeconfig(self) -> Path:
        """An administrator's kubeconfig."""
        return self.layout.kubeconfig

    @property
    def prometheus_url(self) -> str:
        """Where Prometheus answers, for tests and for pods alike."""
        return f"http://127.0.0.1:{self.ports.prometheus}"

    @property
    def api_url(self) -> str:
        """Where the API server answers."""
        return f"https://127.0.0.1:{self.ports.api}"

    def start(self) -> None:
        """Start every part that does not run yet, and wait until each is ready. Raises ClusterError."""
        self.check_state()
        self._programs = get_programs(self._say)
        self._prepare()
        if not self._detached:
            self._start_reaper()
        for parts in self._stages:
            self._start_parts(parts)

    def check_state(self) -> None:
        """Refuse a folder that is not ours, or of a checkout from before the scheduler had a port and keys.

        Raises PrecheckFailedError.
        """
        self._check_folder()
        known = Ports.load(self.layout.ports)
        if known and not known.scheduler:
            ending = end_command(self.layout.state)
            raise PrecheckFailedError(f"the cluster here was started by an older checkout; end it: {ending}")

    @property
    def part_names(self) -> tuple[str, ...]:
        """The parts in the order in which they start."""
        return tuple(chain.from_iterable(self._stages))

    @property
    def _stages(self) -> tuple[tuple[str, ...], ...]:
        """The parts that start side by side, each stage once the one before it is ready.

        Prometheus and the nodes ask again until the API server answers; the others would give up.
        """
        last = ("kube-controller-manager", "kube-scheduler")
        return (("etcd", "prometheus"), ("kube-apiserver", *(("nodes",) if self.nodes else ())), last)

    def start_part(self, name: str, *flags: str) -> None:
        """Start one part unless it runs, with further flags, and wait until it is ready.

        Raises PartFailedError.
        """
        self._start_parts((name,), flags)

    def _start_parts(self, names: Sequence[str], flags: Sequence[str] = ()) -> None:
        for name in names:
            if not self.processes.find(name):
                command = self._command(name)
                environment = {**command.environment, "GOMEMLIMIT": self._part_memory}
                self.processes.start(name, (*command.words, *flags), environment)
        for name in names:
            self._wait_until(name, self._readiness(name))

    def kill_part(self, name: str) -> None:
        """End one part with SIGKILL."""
        self.processes.kill(name)

    def stop(self) -> list[str]:
        """End every part and forget the cluster but for its logs; return the names of those that ran.

        Raises ClusterError where the folder is not a cluster's.
        """
        self._check_folder()
        ended = self.processes.stop_all()
        if self._api is not None:
            self._api.close()
            self._api = None  # the next cluster has other keys
        if self._reaper and self._reaper.stdin:
            self._reaper.stdin.close()
            self._reaper.wait()
        for path in self._own_files():
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        return ended

    @property
    def api(self) -> ApiReader:
        """What reads objects without a kubectl, once the cluster has its keys."""
        with self._api_lock:  # one of two made at once would never be closed
            if self._api is None:
                self._api = ApiReader(self.ports.api, client_context(self.layout.keys, "ca", "admin"))
            return self._api

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """Run kubectl as the administrator and return what it printed. Raises PartFailedError."""
        command = f"kubectl {' '.join(arguments)}"
        try:
            done = subprocess.run(
                [self.layout.programs / "kubectl", *arguments],
                input=stdin,
                capture_output=True,
                text=True,
                env={**os.environ, "KUBECONFIG": str(self.kubeconfig)},
                timeout=KUBECTL_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise PartFailedError(command, f"no answer in {KUBECTL_SECONDS:g} s") from error
        if done.returncode:
            raise PartFailedError(command, done.stderr.strip())
        return done.stdout

    def _prepare(self) -> None:
        layout = self.layout
        layout.state.mkdir(parents=True, exist_ok=True)
        self.ports.save(layout.ports)  # first, so that what follows is ours
        layout.data.mkdir(exist_ok=True, mode=0o700)
        link_programs({**self._programs, **find_plugin()}, layout.programs)
        make_certificates(self._programs["certificates"], layout.keys)
        for user in ("controller-manager", "scheduler"):
            text = render_kubeconfig(self.api_url, layout.keys, user)
            write_private(layout.state / f"{user}.kubeconfig", text)
        write_private(layout.kubeconfig, render_kubeconfig(self.api_url, layout.keys, "admin"))
        layout.prometheus_config.write_text(render_prometheus(layout.kubeconfig, self.scrape_seconds))

    def _check_folder(self) -> None:
        """Refuse a folder where somebody else has files of the names that `stop` removes."""
        found = self._own_files()
        if found and Ports.load(self.layout.ports) is None:
            raise PrecheckFailedError(
                f"{found[0]} is not a cluster's: there is no {self.layout.ports.name} of ours beside it, so "
                "nothing there is changed; name another --state-dir"
            )

    def _own_files(self) -> list[Path]:
        """Return what `stop` removes; the mark that the folder is ours comes last."""
        layout = self.layout
        folders = [layout.data, layout.keys, layout.nodes, layout.records, layout.programs]
        files = [layout.kubeconfig, layout.prometheus_config]
        files += [layout.state / f"{user}.kubeconfig" for user in ("controller-manager", "scheduler")]
        return [path for path in (*folders, *files, layout.ports) if path.exists()]

    def _start_reaper(self) -> None:
        self._reaper = subprocess.Popen(
            [sys.executable, "-m", "e2e.cluster.reaper", str(self.layout.state)],
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    def _command(self, name: str) -> Command:
        programs, layout, ports = self._programs, self.layout, self.ports
        makers: dict[str, Callable[[], Command]] = {
            "etcd": lambda: etcd_command(programs, layout, ports),
            "kube-apiserver": lambda: api_server_command(programs, layout, ports),
            "kube-controller-manager": lambda: controller_manager_command(programs, layout, ports),
            "kube-scheduler": lambda: scheduler_command(programs, layout, ports),
            "prometheus": lambda: prometheus_command(programs, layout, ports),
            "nodes": lambda: nodes_command(layout, self.nodes, self.images),
        }
        return makers[name]()

    def _readiness(self, name: str) -> Callable[[], bool]:
        checks: dict[str, Callable[[], bool]] = {
            "etcd": lambda: is_etcd_ready(self.layout, self.ports),
            "kube-apiserver": lambda: is_api_ready(self.layout, self.ports),
            "kube-controller-manager": lambda: is_healthy(self.layout, self.ports.controller_manager),
            "kube-scheduler": lambda: is_healthy(self.layout, self.ports.scheduler),
            "prometheus": lambda: is_prometheus_ready(self.ports),
            "nodes": self._are_nodes_ready,
        }
        return checks[name]

    def _are_nodes_ready(self) -> bool:
        try:
            found = self.api.list("/api/v1/nodes")
        except PartFailedError:
            return False
        return sum(has_condition(node, "Ready") for node in found) >= len(self.nodes)

    def _wait_until(self, name: str, is_ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + START_SECONDS
        while True:
            record = self.processes.find(name)
            log = self.layout.logs / f"{name}.log"
            if record is None:
                raise PartFailedError(name, f"it ended while starting: {last_line(log)}", log)
            if is_ready():
                return
            if time.monotonic() > deadline:
                raise PartFailedError(name, f"not ready after {START_SECONDS:.0f} s: {last_line(log)}", log)
            time.sleep(0.05)


def nodes_command(layout: Layout, nodes: Sequence[str], images: Sequence[Path] = ()) -> Command:
    """The process nodes, serving logs with the cluster's own certificate."""
    words = [sys.executable, "-m", "e2e.cluster.nodes"]
    words += ["--kubeconfig", str(layout.kubeconfig), "--state-dir", str(layout.nodes)]
    words += ["--hide", str(layout.state), "--kubelet-address", KUBELET_ADDRESS]
    words += ["--tls-certificate", str(layout.keys / "server.crt")]
    words += ["--tls-key", str(layout.keys / "server.key")]
    for node in nodes:
        words += ["--node", node]
    for folder in images:
        words += ["--images", str(folder)]
    return Command("nodes", tuple(words), {"PYTHONPATH": str(REPOSITORY)})
