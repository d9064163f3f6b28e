"""The leading operator: whether one renews its Lease, and its last decision, through `kubectl port-forward`.

The operator answers only clients within its pod, so the user needs the right to forward a port in the
operator's namespace, and to list Leases.
"""

import contextlib
import json
import re
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator

from millrace_kubectl.errors import PluginError, ServerError
from millrace_kubectl.kubectl import Obj, Services, find_program
from millrace_kubectl.wording import describe_moment, describe_seconds
from millrace_operator.api.conditions import parse_time
from millrace_runtime import contract

SILENT_SECONDS = 60.0
"""The leader renews its Lease every 2 s. Its clock and ours may differ."""


def find_silence(services: Services, now: float) -> str | None:
    """Return since when no operator leads, in words; None if one leads, or the user may not list Leases."""
    try:
        leases = services.list_leases(contract.LEASE_OPERATOR)
    except PluginError:
        return None
    if not leases:
        return "no operator leads: there is no Lease of one"
    renewals = [parse_time((lease.get("spec") or {}).get("renewTime")) for lease in leases]
    last = max((at for at in renewals if at is not None), default=None)
    if last is None or now - last < SILENT_SECONDS:
        return None
    return f"no operator leads since {describe_moment(last, now)}, {describe_seconds(now - last)} ago"


TIMEOUT_SECONDS = 15
_FORWARDING = re.compile(r"Forwarding from 127\.0\.0\.1:(\d+) ")


def fetch_decision(services: Services, service: Obj) -> Obj:
    """Return the last decision for a service, with its inputs. Raises PluginError.

    Each operator knows its own services alone. The holder of the oldest Lease comes first: a tenant may make
    a Lease of this name in a namespace of their own, but hardly before the operator was installed.
    """
    path = "/decisions/{namespace}/{name}".format_map(service["metadata"])
    fault = ServerError("no operator leads: see kubectl get lease -A")
    for number, (namespace, pod) in enumerate(_find_leaders(services)):
        try:
            with _forward(services, namespace, pod) as port:
                return _ask(f"http://127.0.0.1:{port}{path}")
        except ServerError as error:
            fault = fault if number else error
    raise fault


def _find_leaders(services: Services) -> list[tuple[str, str]]:
    """Return namespace and name of each pod that holds a Lease of the operator's name."""
    leases = services.list_leases(contract.LEASE_OPERATOR)
    leases.sort(key=lambda lease: str(lease["metadata"].get("creationTimestamp")))
    holders = [(lease, str((lease.get("spec") or {}).get("holderIdentity") or "")) for lease in leases]
    return [(lease["metadata"]["namespace"], pod.partition("_")[0]) for lease, pod in holders if pod]


@contextlib.contextmanager
def _forward(services: Services, namespace: str, pod: str) -> Iterator[int]:
    """Forward a free port of this machine to the operator's, and yield it. Raises ServerError."""
    flags = [flag for flag in services.flags if not flag.startswith("--namespace=")]
    command = [
        find_program(), "port-forward", f"--namespace={namespace}", *flags, f"pod/{pod}",
        f":{contract.PORT_OPERATOR_METRICS}",
    ]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            found = _FORWARDING.match(process.stdout.readline())
            if found is None:
                process.kill()
                lines = process.communicate()[1].strip().splitlines()
                raise ServerError(
                    f"kubectl says: {lines[-1]}" if lines else "kubectl failed and printed nothing"
                )
            yield int(found[1])
        finally:
            process.kill()


def _ask(url: str) -> Obj:
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as answer:  # noqa: S310  our own forwarder
            found: Obj = json.load(answer)
    except urllib.error.HTTPError as error:
        raise ServerError(f"the operator says: {_read_error(error)}") from error
    except (OSError, ValueError) as error:
        raise ServerError(f"the operator does not answer: {error}") from error
    return found


def _read_error(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.load(error)["error"])
    except (ValueError, KeyError, TypeError):
        return f"{error.code} {error.reason}"
