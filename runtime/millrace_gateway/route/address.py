"""Reads the service out of a request's Host. Pure."""

import re
from typing import NamedTuple

from millrace_gateway.route.objects import ServiceKey

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?\Z")
_PORT = re.compile(r":[0-9]{1,5}\Z")


class HostAddress(NamedTuple):
    """A Host of the form `<name>.<namespace>`, which may be meant otherwise."""

    key: ServiceKey
    is_qualified: bool
    """`.svc` followed, so that it can only be meant as a Service of this cluster."""


def parse_label(host: str) -> str | None:
    """Read `<name>[:port]`, which a search in DNS has completed; None for a Host of any other form.

    `localhost` is a forwarded port's.
    """
    name = host.partition(":")[0].lower().rstrip(".")
    return name if _LABEL.match(name) and name != "localhost" else None


def find_port(host: str) -> str:
    """Return the port of a Host as it is written, such as `:8080`; empty where it has none."""
    found = _PORT.search(host)
    return found[0] if found else ""


def parse_host(host: str, cluster_domain: str) -> HostAddress | None:
    """Read `<name>.<namespace>[.svc[.<cluster_domain>]][:port]`; None for a Host of any other form."""
    labels = host.partition(":")[0].lower().rstrip(".").split(".")
    key, suffix = labels[:2], ".".join(labels[2:])
    if len(key) != 2 or not all(map(_LABEL.match, key)) or all(label.isdigit() for label in key):
        return None
    if suffix not in ("", "svc", f"svc.{cluster_domain.lower()}"):
        return None
    return HostAddress(ServiceKey(namespace=key[1], name=key[0]), is_qualified=bool(suffix))
