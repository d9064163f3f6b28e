"""The gateway's settings, read once at its start."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from millrace_gateway.route.objects import ServiceKey
from millrace_runtime.contract import DEFAULT_NAMESPACE

MEBIBYTE = 1024 * 1024


@dataclass(frozen=True)
class Settings:
    """The gateway's settings; parsed from flags and environment in `command`."""

    bind_address: str
    """The address to listen on; empty: all addresses, IPv6 and IPv4."""
    port: int
    """The port to listen on; 0 takes a free one."""
    metrics_port: int = 0
    """The port of what is not for clients, `/metrics` and `/loads`; 0 takes a free one."""
    cluster_domain: str = "cluster.local"
    """The cluster's DNS domain: what may follow `.svc` in a Host."""
    max_body_bytes: int = 8 * MEBIBYTE
    """A longer request body is refused with 413, because bodies are held until a replica answers."""
    body_memory_bytes: int = 256 * MEBIBYTE
    """What all bodies that are held may take together; another request is refused with 429."""
    body_seconds: float = 60.0
    """A body that takes longer to arrive is refused with 408."""
    namespaces: tuple[str, ...] = ()
    """Those whose services it serves; none means all."""
    short_names: Mapping[str, ServiceKey] = field(default_factory=dict)
    """The services that the platform gives model names to, whoever claims these."""
    public_hosts: frozenset[str] = frozenset()
    """Hosts at which `model` decides, also where they look like a service's."""
    short_hosts: bool = False
    """Whether the Host `<name>.<namespace>` names a service, without `.svc`, too."""
    list_all_models: bool = False
    """Whether `/v1/models` lists every service's model where the Host names none; else the pinned names."""
    forward_headers: tuple[str, ...] = ()
    """Headers of clients that replicas get beside those of the list in `headers`."""
    own_namespace: str | None = None
    """Where the gateway runs in a cluster: a Host there may be its own Service, whatever that is called."""
    operator_namespace: str = DEFAULT_NAMESPACE
    """Where the operator's Lease is: its holder alone may read what is in flight."""
    connect_seconds: float = 3.0
    """How long a connection to a replica may take before another replica is asked."""
    keepalive_seconds: float = 4.0
    """How long an idle connection to a replica is kept: below the 5 s after which uvicorn closes it."""
    suspect_seconds: float = 2.0
    """How long a replica that refused is asked last."""
    retry_after_seconds: int = 5
    """What Retry-After says when a service has no ready replica."""
    drain_notice_seconds: float = 3.0
    """After SIGTERM requests are still accepted for this long: the cluster routes some here until then."""
