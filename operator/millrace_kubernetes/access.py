"""The API server's address and our credentials: a pod's own files, or else a kubeconfig."""

import base64
import binascii
import ssl
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from millrace_kubernetes.errors import AccessError, KubeconfigError

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True)
class ClusterAccess:
    """How to reach the API server."""

    server: str
    """Its URL, without a slash at the end."""
    tls: ssl.SSLContext | None
    """None for plain http."""
    token: str | None = None
    """A token that does not change."""
    token_file: Path | None = None
    """A token that the kubelet renews in place, so each request reads it again."""
    namespace: str | None = None
    """The pod's namespace; None outside a cluster: a kubeconfig's namespace is only its user's choice."""

    async def headers(self) -> dict[str, str]:
        """Return the headers that authenticate one request.

        Raises OSError if the token file cannot be read, AccessError if its content cannot be a token.
        """
        token = self.token_file.read_text(errors="replace").strip() if self.token_file else self.token
        if token and not (token.isascii() and token.isprintable()):
            place = f"token in {self.token_file}" if self.token_file else "token of the kubeconfig"
            raise AccessError(f"The {place} can't be used: write one line of visible ASCII.")
        return {"Authorization": f"Bearer {token}"} if token else {}


def load_access(environ: Mapping[str, str], service_account: Path = SERVICE_ACCOUNT) -> ClusterAccess:
    """Return the pod's own access if there is one, else the kubeconfig's. Raises AccessError."""
    host, port = environ.get("KUBERNETES_SERVICE_HOST"), environ.get("KUBERNETES_SERVICE_PORT", "443")
    if host and (service_account / "token").exists():
        return _load_in_cluster(host, port, service_account)
    path = Path(environ.get("KUBECONFIG") or Path.home() / ".kube" / "config")
    try:
        return load_kubeconfig(path)
    except KubeconfigError as error:
        raise AccessError(
            f"This is no pod with a service account, and {error}: set KUBECONFIG to one."
        ) from error


def load_kubeconfig(path: Path) -> ClusterAccess:
    """Return the access of a kubeconfig's current context. Raises AccessError that says what is missing."""
    try:
        return _read_kubeconfig(yaml.safe_load(path.read_text()), path)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise KubeconfigError(f"the kubeconfig {path} can't be read ({error})") from error
    except (AttributeError, TypeError) as error:
        raise KubeconfigError(f"{path} is YAML, but no kubeconfig ({error})") from error


def _read_kubeconfig(document: Any, path: Path) -> ClusterAccess:
    context = _find(document, "contexts", _field(document, "current-context", path), "context", path)
    cluster = _find(document, "clusters", _field(context, "cluster", path), "cluster", path)
    user = _find(document, "users", _field(context, "user", path), "user", path)
    if "exec" in user or "auth-provider" in user:
        raise AccessError(
            f"{path} signs in by a command, which this program can't do: "
            "use one with a token or a client certificate."
        )
    server = str(_field(cluster, "server", path)).rstrip("/")
    token, token_file = user.get("token"), user.get("tokenFile")
    return ClusterAccess(
        server=server,
        tls=_make_tls(cluster, user, path) if server.startswith("https:") else None,
        token=str(token).strip() if token else None,
        token_file=path.parent / token_file if token_file else None,
    )


def _load_in_cluster(host: str, port: str, service_account: Path) -> ClusterAccess:
    server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    namespace_file = service_account / "namespace"
    try:
        tls = ssl.create_default_context(cafile=str(service_account / "ca.crt"))
        namespace = namespace_file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:  # ssl.SSLError is an OSError
        raise AccessError(f"The pod's service account in {service_account} is not whole: {error}.") from error
    return ClusterAccess(server, tls, token_file=service_account / "token", namespace=namespace)


def _field(mapping: Any, name: str, path: Path) -> Any:
    if not isinstance(mapping, Mapping) or not mapping.get(name):
        raise AccessError(f"The kubeconfig {path} lacks {name!r}.")
    return mapping[name]


def _find(document: Any, section: str, name: str, kind: str, path: Path) -> Mapping[str, Any]:
    for entry in _field(document, section, path):
        if entry.get("name") == name:
            found: Mapping[str, Any] = entry.get(kind) or {}
            return found
    raise AccessError(f"The kubeconfig {path} has no {kind} named {name!r}.")


def _make_tls(cluster: Mapping[str, Any], user: Mapping[str, Any], path: Path) -> ssl.SSLContext:
    try:
        authority = _read_material(cluster, "certificate-authority", path)
        tls = ssl.create_default_context(cadata=authority.decode() if authority else None)
        if cluster.get("insecure-skip-tls-verify"):
            tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
        _load_client_certificate(tls, user, path)
    except (OSError, ValueError, binascii.Error) as error:  # ssl.SSLError is an OSError
        raise AccessError(f"The certificates in {path} can't be used: {error}.") from error
    return tls


def _load_client_certificate(tls: ssl.SSLContext, user: Mapping[str, Any], path: Path) -> None:
    certificate = _read_material(user, "client-certificate", path)
    key = _read_material(user, "client-key", path)
    if not certificate or not key:
        return
    with tempfile.NamedTemporaryFile() as pair:  # ssl takes files only; only we may read this one
        pair.write(certificate + b"\n" + key)
        pair.flush()
        tls.load_cert_chain(pair.name)


def _read_material(section: Mapping[str, Any], name: str, path: Path) -> bytes | None:
    if section.get(f"{name}-data"):
        return base64.b64decode(section[f"{name}-data"], validate=True)
    return (path.parent / section[name]).read_bytes() if section.get(name) else None
