"""`kubectl millrace` as a test's user runs it."""

import os
import sys
from subprocess import run

from e2e.cluster.local_cluster import LocalCluster
from e2e.service import Service
from testing.polling import wait_until

PROGRAM = (sys.executable, "-c", "from millrace_kubectl.command import main; main()")


def explain(service: Service, *flags: str) -> str:
    """Return what `kubectl millrace explain` prints of a service."""
    return ask(service, "explain", *flags)


def wait_for_words(service: Service, words: str, seconds: float = 120.0) -> str:
    """Return what `kubectl millrace explain` prints once these words are in it.

    Each look takes half a second of CPU time: wait for the API server's words first, where these tell of it.
    """

    def look() -> str:
        text = explain(service)
        return text if words in text else ""

    return wait_until(f"explain says {words}", look, seconds)


def ask(service: Service, sub_command: str, *flags: str) -> str:
    """Return what a sub-command of `kubectl millrace` prints of a service."""
    return ask_namespace(service, sub_command, service.name, *flags)


def ask_namespace(service: Service, *words: str) -> str:
    """Return what `kubectl millrace` prints in the service's namespace."""
    return ask_cluster(service.cluster, service.namespace, *words)


def ask_cluster(cluster: LocalCluster, namespace: str, *words: str) -> str:
    """Return what `kubectl millrace` prints in a namespace."""
    path = f"{cluster.layout.programs}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path}
    flags = ("-n", namespace, f"--kubeconfig={cluster.kubeconfig}")
    command = [*PROGRAM, *words, *flags]
    return run(command, env=environment, capture_output=True, text=True, check=True).stdout
