"""Reads a kubeconfig: where the API server is and how to prove who we are."""

import base64
import ssl
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any
from urllib.parse import urlsplit

import yaml

from e2e.cluster.nodes.errors import SettingsError


@dataclass(frozen=True)
class ApiServer:
    """An API server's address and our credentials for it."""

    url: str
    ssl_context: ssl.SSLContext | None
    token: str | None

    @property
    def host(self) -> str:
        """The host name or address in its URL."""
        return urlsplit(self.url).hostname or ""

    @property
    def port(self) -> int:
        """The port in its URL."""
        return urlsplit(self.url).port or 443


def load_kubeconfig(path: Path) -> ApiServer:
    """The current context's API server; SettingsError names the file and what it lacks."""
    try:
        config = yaml.safe_load(path.read_text())
        context = _named(config, "context", config["current-context"])
        cluster = _named(config, "cluster", context["cluster"])
        user = _named(config, "user", context["user"])
        url = cluster["server"].rstrip("/")
    except OSError as error:
        raise SettingsError(f"cannot read the kubeconfig {path}: {error.strerror}") from error
    except (KeyError, TypeError, StopIteration, yaml.YAMLError) as error:
        raise SettingsError(f"{path} is no kubeconfig with a current context: {error!r}") from error
    token = user.get("token")
    return ApiServer(url, _ssl_context(path, cluster, user) if url.startswith("https") else None, token)


def _named(config: dict[str, Any], kind: str, name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(entry[kind] for entry in config[f"{kind}s"] if entry["name"] == name)
    return found


def _ssl_context(path: Path, cluster: dict[str, Any], user: dict[str, Any]) -> ssl.SSLContext:
    authority = _content(path, cluster, "certificate-authority")
    context = ssl.create_default_context(cadata=authority.decode() if authority else None)
    if cluster.get("insecure-skip-tls-verify"):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    certificate, key = (_content(path, user, name) for name in ("client-certificate", "client-key"))
    if certificate and key:
        with NamedTemporaryFile() as file:  # load_cert_chain reads only files; this one is 0600
            file.write(certificate + b"\n" + key)
            file.flush()
            context.load_cert_chain(file.name)
    return context


def _content(path: Path, section: dict[str, Any], name: str) -> bytes | None:
    if f"{name}-data" in section:
        return base64.b64decode(section[f"{name}-data"])
    return (path.parent / section[name]).read_bytes() if name in section else None
