"""How to reach the API server: the pod's service account, else KUBECONFIG."""

import os
import ssl
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from kubernetes.aio import client, config
from yarl import URL

from millrace_kubernetes.errors import AccessError
from millrace_operator.kube.errors import BadStartError


@dataclass
class Access:
    """An API server and how to authenticate to it."""

    configuration: Any
    server: str
    """The server's URL, as HTTP writes it, without a slash at its end."""

    @cached_property
    def tls(self) -> ssl.SSLContext:
        """The TLS context with the cluster's CA and the client certificate, if there is one."""
        settings = self.configuration
        context = ssl.create_default_context(cafile=settings.ssl_ca_cert)
        if settings.cert_file:
            context.load_cert_chain(settings.cert_file, keyfile=settings.key_file)
        if not settings.verify_ssl:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context

    async def headers(self) -> dict[str, str]:
        """Return the authorization header. Raises AccessError if there is no token now."""
        try:
            await self._refresh()
        except (config.ConfigException, OSError, ValueError) as error:
            raise AccessError(f"no credentials for the API server just now: {error}") from error
        token = self.configuration.api_key.get("BearerToken") or self.configuration.api_key.get(
            "authorization"
        )
        if not token:
            return {}
        return {"Authorization": token if token.lower().startswith("bearer ") else f"Bearer {token}"}

    async def _refresh(self) -> None:
        """Read a service account's token again, because it rotates."""
        if self.configuration.refresh_api_key_hook is None:
            return
        result = self.configuration.refresh_api_key_hook(self.configuration)
        if result is not None:
            await result


async def load_access() -> Access:
    """Return the access to the API server. Raises BadStartError, which says what to set."""
    configuration = client.Configuration()
    try:
        if os.environ.get("KUBERNETES_SERVICE_HOST"):
            config.load_incluster_config(client_configuration=configuration)
        else:
            path = os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
            await config.load_kube_config(config_file=path, client_configuration=configuration)
    except (config.ConfigException, OSError) as error:
        raise BadStartError(
            f"no API server to talk to ({error}); run in a pod with a service account, or set KUBECONFIG"
        ) from error
    return Access(configuration, _read_server(str(configuration.host)))


def _read_server(host: str) -> str:
    try:
        return str(URL(host)).rstrip("/")
    except ValueError as error:
        raise BadStartError(f"'{host}' is no address of an API server: {error}") from error
