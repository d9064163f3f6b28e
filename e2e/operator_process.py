"""`millrace operator` as a process of its own, beside a control plane, for tests that stop and kill it."""

import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Self

import yaml

from e2e.cluster.local_cluster import LocalCluster
from testing.polling import wait_until

START = "import sys; from millrace_operator.command import main; sys.exit(main(sys.argv[1:]))"
START_SECONDS = 60.0


class OperatorProcess:
    """One replica of the operator. It ends with its `with`, whatever happens there.

    `namespace` is where its Lease is. It calls itself `identity`.
    """

    def __init__(
        self,
        kubeconfig: str,
        namespace: str,
        log: Path,
        *,
        identity: str = "test",
        flags: tuple[str, ...] = (),
    ) -> None:
        file = log.with_suffix(".kubeconfig")
        file.write_text(kubeconfig)
        words = [sys.executable, "-c", START, "--namespace", namespace, "--identity", identity]
        self._port = find_free_port()
        words += ["--port", str(self._port), "--gateway-port", "8080"]
        words += ["--prometheus-url", "http://127.0.0.1:9", "--gateway-service", "gateway.millrace.svc"]
        environment = {**os.environ, "KUBECONFIG": str(file), "MILLRACE_BIND_ADDRESS": "127.0.0.1"}
        self.log = log
        with log.open("ab") as errors:
            self._process = subprocess.Popen([*words, *flags], stderr=errors, env=environment)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    @property
    def is_well(self) -> bool:
        """Whether it answers a probe as its kubelet wants it."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/healthz", timeout=10) as response:
                return bool(response.status == 200)
        except urllib.error.HTTPError as error:
            error.close()
            return False

    @property
    def text(self) -> str:
        """What it has logged."""
        return self.log.read_text()

    def wait_leading(self) -> Self:
        """Wait until it leads for the first time."""
        try:
            wait_until(f"{self.log.stem} leads", lambda: "leading as" in self.text, START_SECONDS)
        except BaseException:
            self.kill()
            raise
        return self

    def wait_ended(self) -> None:
        """Wait until it has ended, by whatever hand."""
        self._process.wait(START_SECONDS)

    def kill(self) -> None:
        """End it with SIGKILL; nothing is done where it has ended."""
        self._process.kill()
        self._process.wait()

    def pause(self) -> None:
        """Stop its clock, as a node does that hangs."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """End it as Kubernetes does."""
        self._process.send_signal(signal.SIGTERM)
        assert self._process.wait(timeout=15) == 0


def find_free_port() -> int:
    """Return a port that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def render_account_kubeconfig(
    cluster: LocalCluster, namespace: str, account: str = "millrace-operator"
) -> str:
    """Return a kubeconfig of a ServiceAccount: what it may not do fails here as on a cluster."""
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    token = cluster.kubectl("create", "token", account, "-n", namespace).strip()
    config["users"] = [{"name": user["name"], "user": {"token": token}} for user in config["users"]]
    return yaml.safe_dump(config)
