"""`kubectl millrace` as a test's user runs it."""

import os
import sys
from subprocess import run

from e2e.service import Service

PROGRAM = (sys.executable, "-c", "from millrace_kubectl.command import main; main()")


def explain(service: Service, *flags: str) -> str:
    """Return what `kubectl millrace explain` prints of a service."""
    return ask(service, "explain", *flags)


def ask(service: Service, sub_command: str, *flags: str) -> str:
    """Return what a sub-command of `kubectl millrace` prints of a service."""
    return ask_namespace(service, sub_command, service.name, *flags)


def ask_namespace(service: Service, *words: str) -> str:
    """Return what `kubectl millrace` prints in the service's namespace."""
    path = f"{service.cluster.layout.programs}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path}
    flags = ("-n", service.namespace, f"--kubeconfig={service.cluster.kubeconfig}")
    command = [*PROGRAM, *words, *flags]
    return run(command, env=environment, capture_output=True, text=True, check=True).stdout
