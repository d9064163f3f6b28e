"""The gateway's settings, read once at its start."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from millrace_gateway.access.policy import OPEN, AccessPolicy
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
    """The port of `/metrics` and `/loads`, which are not for clients; 0 takes a free one."""
    cluster_domain: str = "cluster.local"
    """The cluster's DNS domain, which may follow `.svc` in a Host."""
    max_body_bytes: int = 8 * MEBIBYTE
    """A longer request body is refused with 413, because bodies are held until a replica answers."""
    body_memory_bytes: int = 256 * MEBIBYTE
    """The memory for all held bodies together; a request beyond it is refused with 429."""
    body_seconds: float = 60.0
    """A body that takes longer to arrive is refused with 408."""
    namespaces: tuple[str, ...] = ()
    """The namespaces whose services the gateway serves; empty means all."""
    peers_port: int = 0
    """The port for other gateways' reports; 0 takes a free one."""
    default_access: AccessPolicy = OPEN
    """Who may use services without `spec.access`, and how much."""
    secret_namespaces: tuple[str, ...] = ()
    """Namespaces whose Secrets with clients' keys the gateway reads, beside its own."""
    pod_name: str = ""
    """The name of the gateway's pod, by which other gateways know it."""
    has_access_log: bool = False
    """Whether each request is a line of JSON on the standard output."""
    sessions_by_user: bool = False
    """Whether requests with the same `user` in their bodies go to the same replica."""
    short_names: Mapping[str, ServiceKey] = field(default_factory=dict)
    """The services of model names that the platform has pinned: no other claim to such a name counts."""
    public_hosts: frozenset[str] = frozenset()
    """Hosts at which `model` decides, even if they look like a service's."""
    short_hosts: bool = False
    """Whether the Host `<name>.<namespace>`, without `.svc`, names a service."""
    list_all_models: bool = False
    """Whether `/v1/models` at a Host of no service lists every service's model; if not, the pinned names."""
    forward_headers: tuple[str, ...] = ()
    """Headers of clients that replicas get beside the list in `headers`."""
    allowed_origins: tuple[str, ...] = ()
    """Origins of web pages that may call the gateway, as `parse_origin` returns them."""
    own_namespace: str | None = None
    """The gateway's own namespace: a Host there may be the gateway's Service, whose name it does not know."""
    operator_namespace: str = DEFAULT_NAMESPACE
    """The namespace of the operator's Lease: only its holder may read the requests in flight."""
    connect_seconds: float = 3.0
    """How long a connection to a replica may take before the gateway tries another one."""
    keepalive_seconds: float = 4.0
    """How long an idle connection to a replica may be used again: no more than half of the least time for
    which a replica keeps it."""
    suspect_seconds: float = 2.0
    """How long a replica that refused a request comes last."""
    retry_after_seconds: int = 5
    """Retry-After for a service without a ready replica."""
    drain_notice_seconds: float = 3.0
    """How long requests are still accepted after SIGTERM: the cluster still routes some here."""
    drain_idle_seconds: float = 1.0
    """How long no request must have been in flight before idle connections are closed: an answer that began
    before SIGTERM allowed its client another request, which may be on its way as that answer ends."""
