"""`millrace operator` as a process of its own, beside a control plane, for tests that stop and kill it.

Each is forked from a server that has imported the operator once, which takes two seconds of CPU.
"""

import multiprocessing
import os
import signal
import socket
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Self

import yaml

from e2e.cluster.local_cluster import LocalCluster
from millrace_operator.app.command import main
from testing.polling import wait_until

PRELOADED = ["e2e.operator_process", "pytest"]  # a fork imports the main module of its parent
START_SECONDS = 60.0
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(PRELOADED)


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
        words = ["--namespace", namespace, "--identity", identity]
        self._port = find_free_port()
        words += ["--port", str(self._port), "--gateway-port", "8080"]
        words += ["--prometheus-url", "http://127.0.0.1:9", "--gateway-service", "gateway.millrace.svc"]
        environment = {"KUBECONFIG": str(file), "MILLRACE_BIND_ADDRESS": "127.0.0.1"}
        self.log = log
        log.touch()
        self._process = _CONTEXT.Process(target=_run, args=([*words, *flags], environment, log), daemon=True)
        self._process.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self._process.exitcode is None

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
        self._process.join(START_SECONDS)
        assert not self.is_running

    def kill(self) -> None:
        """End it with SIGKILL; nothing is done where it has ended."""
        self._process.kill()
        self._process.join()

    def pause(self) -> None:
        """Stop its clock, as a node does that hangs."""
        self._send(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        self._send(signal.SIGCONT)

    def stop(self) -> None:
        """End it as Kubernetes does."""
        self._process.terminate()
        self._process.join(15)
        assert self._process.exitcode == 0

    def _send(self, number: signal.Signals) -> None:
        assert self._process.pid is not None
        os.kill(self._process.pid, number)


def _run(words: list[str], environment: dict[str, str], log: Path) -> None:
    os.environ |= environment
    with log.open("ab") as errors:
        os.dup2(errors.fileno(), sys.stderr.fileno())
    sys.exit(main(words))


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
