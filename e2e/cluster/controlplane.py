"""The command lines of etcd and Kubernetes' own parts, and when each is ready. Starts nothing itself."""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.loopback import answers
from e2e.cluster.settings import SERVICE_RANGE, Layout, Ports

# EndpointSlices refuse loopback addresses, and Endpoints with them, so their controllers would only fail
# over and over; process nodes route Services by their selectors. No Node here needs a pod range.
CONTROLLERS = (
    "*",
    "-endpoints-controller",
    "-endpointslice-controller",
    "-endpointslice-mirroring-controller",
    "-node-ipam-controller",
    "-node-route-controller",
    "-cloud-node-lifecycle-controller",
    "-service-lb-controller",
)

MEMORY = {"GOGC": "400"}
"""Little garbage is collected while a part starts: the API server takes 3.5 s instead of 4.6."""
PART_MEMORY = "400MiB"
"""Where each part begins to collect garbage more often; all together take 0.9 GB when idle. An API server
that needs more collects without end: with 2,000 services an edit took 38 ms instead of 5."""


@dataclass(frozen=True)
class Command:
    """How one part is started."""

    name: str
    words: tuple[str, ...]
    environment: Mapping[str, str]


def part_command(programs: Mapping[str, Path], name: str, *flags: str) -> Command:
    """Return the command of a part. The command of a program with several parts says which one to be."""
    binary = programs[name]
    first = (str(binary),) if binary.name == name else (str(binary), name)
    return Command(name, (*first, *flags), MEMORY)


def etcd_command(programs: Mapping[str, Path], layout: Layout, ports: Ports) -> Command:
    """One etcd on loopback that never waits for the disk: what it holds dies with the cluster.

    Who may write to it may start pods as the person who started the cluster, so it asks for a certificate.
    """
    keys = layout.keys
    peer = f"https://127.0.0.1:{ports.etcd_peer}"
    client = f"https://127.0.0.1:{ports.etcd}"
    certificates = (
        "--client-cert-auth",
        f"--trusted-ca-file={keys / 'etcd-ca.crt'}",
        f"--cert-file={keys / 'etcd.crt'}",
        f"--key-file={keys / 'etcd.key'}",
    )
    # Of a peer it asks the same, though it has none.
    peers = (flag.replace("--", "--peer-", 1) for flag in certificates)
    return part_command(
        programs,
        "etcd",
        f"--data-dir={layout.data / 'etcd'}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
        *certificates,
        *peers,
        "--unsafe-no-fsync",
        "--log-level=warn",
    )


def api_server_command(programs: Mapping[str, Path], layout: Layout, ports: Ports) -> Command:
    """The API server with RBAC and Kubernetes' default admission."""
    keys = layout.keys
    return part_command(
        programs,
        "kube-apiserver",
        f"--etcd-servers=https://127.0.0.1:{ports.etcd}",
        f"--etcd-cafile={keys / 'etcd-ca.crt'}",
        f"--etcd-certfile={keys / 'etcd-client.crt'}",
        f"--etcd-keyfile={keys / 'etcd-client.key'}",
        "--bind-address=127.0.0.1",
        "--advertise-address=127.0.0.1",
        f"--secure-port={ports.api}",
        "--endpoint-reconciler-type=none",
        f"--service-cluster-ip-range={SERVICE_RANGE}",
        "--authorization-mode=RBAC",
        "--allow-privileged=true",
        f"--tls-cert-file={keys / 'server.crt'}",
        f"--tls-private-key-file={keys / 'server.key'}",
        f"--client-ca-file={keys / 'ca.crt'}",
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
        f"--service-account-key-file={keys / 'tokens.pub'}",
        f"--service-account-signing-key-file={keys / 'tokens.key'}",
        f"--kubelet-certificate-authority={keys / 'ca.crt'}",
        f"--kubelet-client-certificate={keys / 'kubelet-client.crt'}",
        f"--kubelet-client-key={keys / 'kubelet-client.key'}",
        "--kubelet-preferred-address-types=InternalIP",
        "--default-not-ready-toleration-seconds=30",
        "--default-unreachable-toleration-seconds=30",
    )


def controller_manager_command(programs: Mapping[str, Path], layout: Layout, ports: Ports) -> Command:
    """The controllers, each under its own service account, with periods short enough for tests."""
    keys = layout.keys
    return part_command(
        programs,
        "kube-controller-manager",
        f"--kubeconfig={layout.state / 'controller-manager.kubeconfig'}",
        f"--controllers={','.join(CONTROLLERS)}",
        "--use-service-account-credentials=true",
        # At its 20 requests a second the controllers take 4 s to get their accounts' tokens.
        "--kube-api-qps=200",
        "--kube-api-burst=400",
        f"--service-account-private-key-file={keys / 'tokens.key'}",
        f"--root-ca-file={keys / 'ca.crt'}",
        "--leader-elect=false",
        *serving_flags(keys, ports.controller_manager),
        "--node-monitor-period=2s",
        "--pvclaimbinder-sync-period=2s",
        "--horizontal-pod-autoscaler-sync-period=5s",
    )


def scheduler_command(programs: Mapping[str, Path], layout: Layout, ports: Ports) -> Command:
    """The scheduler as it is."""
    return part_command(
        programs,
        "kube-scheduler",
        f"--kubeconfig={layout.state / 'scheduler.kubeconfig'}",
        "--leader-elect=false",
        *serving_flags(layout.keys, ports.scheduler),
    )


def serving_flags(keys: Path, port: int) -> tuple[str, ...]:
    """Return the flags for the port on which a part reports its health; no user may read more there."""
    files = (f"--tls-cert-file={keys / 'server.crt'}", f"--tls-private-key-file={keys / 'server.key'}")
    return ("--bind-address=127.0.0.1", f"--secure-port={port}", *files)


def is_etcd_ready(layout: Layout, ports: Ports) -> bool:
    """Whether etcd has a leader and answers."""
    context = client_context(layout.keys, "etcd-ca", "etcd-client")
    return answers(f"https://127.0.0.1:{ports.etcd}/health", context)


def is_api_ready(layout: Layout, ports: Ports) -> bool:
    """Whether the API server says that all of its start-up is done."""
    return answers(f"https://127.0.0.1:{ports.api}/readyz", client_context(layout.keys, "ca", "admin"))


def is_healthy(layout: Layout, port: int) -> bool:
    """Whether the scheduler or the controller-manager says that it works."""
    return answers(f"https://127.0.0.1:{port}/healthz", client_context(layout.keys, "ca", "admin"))


def client_context(keys: Path, authority: str, user: str) -> ssl.SSLContext:
    """Return a TLS context that trusts one authority and signs in as one user."""
    context = ssl.create_default_context(cafile=str(keys / f"{authority}.crt"))
    context.load_cert_chain(keys / f"{user}.crt", keys / f"{user}.key")
    return context
