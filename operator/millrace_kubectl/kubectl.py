"""Reads and annotates InferenceServices, and changes Secrets, by running kubectl with the user's flags."""

import json
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from millrace_kubectl.errors import ConflictError, PluginError, ServerError
from millrace_operator.api.change_record import KEY, find_newest
from millrace_runtime import contract

Obj = dict[str, Any]
RESOURCE = "inferenceservices.v1alpha1.millrace.dev"
"""The full name: another project's resource may have the same short name."""
REVISIONS = "controllerrevisions.v1.apps"
LEASES = "leases.v1.coordination.k8s.io"
REQUEST_TIMEOUT = "--request-timeout=15s"
ABSENT_RESOURCE = "doesn't have a resource type"


@dataclass(frozen=True)
class Services:
    """The InferenceServices of one namespace, as kubectl reaches them."""

    flags: tuple[str, ...] = ()
    """kubectl's own flags for cluster and namespace."""

    def fetch(self, name: str) -> Obj:
        """Return a service with its managedFields. Raises PluginError."""
        return self._run(name, ["get", RESOURCE, name, "--show-managed-fields"])

    def list_names(self) -> list[str]:
        """Return the names of all services. Raises PluginError."""
        return [str(one["metadata"]["name"]) for one in self.list_all()]

    def list_all(self, *, everywhere: bool = False) -> list[Obj]:
        """Return all services, of one or of all namespaces. Raises PluginError."""
        return self._list(RESOURCE, everywhere=everywhere)

    def list_revisions(self, *, everywhere: bool = False) -> list[Obj]:
        """Return the services' ControllerRevisions. Raises PluginError."""
        return self._list(REVISIONS, f"--selector={contract.LABEL_SERVICE}", everywhere=everywhere)

    def list_nodes(self) -> list[Obj] | None:
        """Return the cluster's nodes; None if the user may not list them. Raises PluginError."""
        try:
            return self._list("nodes", everywhere=False)
        except ServerError:
            return None

    def list_leases(self, name: str) -> list[Obj]:
        """Return the Leases of a name in all namespaces. Raises PluginError."""
        return self._list(LEASES, f"--field-selector=metadata.name={name}", everywhere=True)

    def _list(self, resource: str, *flags: str, everywhere: bool) -> list[Obj]:
        flags = (*flags, "--all-namespaces") if everywhere else flags
        items: list[Obj] = self._run("", ["get", resource, *flags]).get("items", [])
        return items

    def fetch_record(self, name: str) -> str | None:
        """Return the operator's record of changes; None if there is none, or the user may not see it.

        A user without the right to list ControllerRevisions gets no error, because status has the last
        changes. Raises PluginError if there is no kubectl.
        """
        try:
            text = (self.fetch_learned(name) or {}).get(KEY)
        except ServerError:
            return None
        return text if isinstance(text, str) else None

    def fetch_learned(self, name: str) -> Obj | None:
        """Return the operator's annotation on a service's revisions; None if there is none yet.

        Raises PluginError, also if the user may not list ControllerRevisions.
        """
        records = self._list(REVISIONS, f"--selector={contract.LABEL_SERVICE}={name}", everywhere=False)
        return find_newest(records)

    def annotate(self, name: str, key: str, value: str | None, version: str | None = None) -> Obj:
        """Set an annotation, or remove it with None, and return the service. Raises PluginError.

        Raises ConflictError if the service's resourceVersion is not the given `version`.
        """
        metadata: Obj = {"annotations": {key: value}}
        if version is not None:
            metadata["resourceVersion"] = version
        patch = json.dumps({"metadata": metadata})
        return self._run(name, ["patch", RESOURCE, name, "--type", "merge", "-p", patch])

    def _run(self, name: str, arguments: Sequence[str]) -> Obj:
        done = _call(arguments, self.flags)
        if done.returncode != 0:
            raise _read_failure(name, done.stderr)
        return _parse(done.stdout)


@dataclass(frozen=True)
class Secrets:
    """The Secrets of one namespace, as kubectl reaches them."""

    flags: tuple[str, ...] = ()
    """kubectl's own flags for cluster and namespace."""

    def fetch(self, name: str) -> Obj | None:
        """Return a Secret; None if there is none. Raises PluginError."""
        text = self._run(["get", "secrets", name, "--ignore-not-found"])
        return _parse(text) if text.strip() else None

    def list_labelled(self, label: str) -> list[Obj]:
        """Return the Secrets whose label is true. Raises PluginError."""
        items: list[Obj] = _parse(self._run(["get", "secrets", f"--selector={label}=true"])).get("items", [])
        return items

    def create(self, name: str, labels: dict[str, str], data: dict[str, str]) -> None:
        """Create a Secret. Raises PluginError, and ConflictError if there is one."""
        head = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "labels": labels}}
        self._run(["create", "-f", "-"], json.dumps({**head, "type": "Opaque", "data": data}))

    def change(self, secret: Obj, data: dict[str, str | None]) -> None:
        """Set entries of a Secret, or remove them with None. Raises PluginError.

        Raises ConflictError if it has changed since it was read.
        """
        metadata = secret["metadata"]
        patch = {"metadata": {"resourceVersion": metadata["resourceVersion"]}, "data": data}
        self._run(["patch", "secrets", metadata["name"], "--type", "merge", "-p", json.dumps(patch)])

    def _run(self, arguments: Sequence[str], stdin: str | None = None) -> str:
        done = _call(arguments, self.flags, stdin)
        if done.returncode == 0:
            return done.stdout
        line = _last_line(done.stderr.splitlines())
        is_late = "(Conflict)" in line or "(AlreadyExists)" in line
        raise (ConflictError if is_late else ServerError)(f"kubectl says: {line}")


def _call(
    arguments: Sequence[str], flags: Sequence[str], stdin: str | None = None
) -> "subprocess.CompletedProcess[str]":
    command = [find_program(), *arguments, "-o", "json", REQUEST_TIMEOUT, *flags]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)


def find_program() -> str:
    """Return kubectl's path. Raises PluginError if there is none."""
    program = shutil.which("kubectl")
    if program is None:
        raise PluginError("there is no kubectl on PATH: install it, or add its folder to PATH")
    return program


def _parse(text: str) -> Obj:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict) or "metadata" not in found:
        raise ServerError(f"kubectl printed no object: {text[:80]!r}")
    return found


def _read_failure(name: str, text: str) -> PluginError:
    """Return kubectl's error with what to do. Warnings may precede it."""
    line = _last_line(text.splitlines())
    if "(NotFound)" in line and f'"{name}"' in line:
        return ServerError(
            f"there is no InferenceService {name} in this namespace; kubectl get infsvc -A lists all of them"
        )
    if ABSENT_RESOURCE in line or "(NotFound)" in line:
        return ServerError(
            "this cluster has no InferenceServices: install Millrace, or choose another --context"
        )
    return (ConflictError if "(Conflict)" in line else ServerError)(f"kubectl says: {line}")


def _last_line(lines: Sequence[str]) -> str:
    return next((line.strip() for line in reversed(lines) if line.strip()), "nothing, and failed")
