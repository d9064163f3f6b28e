"""Queries a Prometheus like the operator: with the same flags, files, headers and certificates."""

import argparse
import json
import re
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from millrace_kubectl.errors import PluginError, ServerError, UsageError
from millrace_operator.autoscaler.run.settings import Access, SettingError, read_prometheus
from millrace_operator.autoscaler.signals.answers import SignalError, check_whole

TIMEOUT_SECONDS = 30.0
CREDENTIALS = {
    401: "it needs credentials: write --prometheus-token-file, or another flag with credentials",
    403: "these credentials, or none, may not read it: write others, such as --prometheus-token-file",
}
PREFIX, OWN_FLAG = "--prometheus-url", "--from-prometheus"


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: the credentials are for the user's address alone."""

    def redirect_request(self, *_args: object, **_kwargs: object) -> None:
        """Return no request to the new address."""


@dataclass(frozen=True)
class Prometheus:
    """A Prometheus, with the access to it."""

    access: Access

    @property
    def url(self) -> str:
        """Its address."""
        return self.access.settings.url

    @property
    def matchers(self) -> str:
        """More label matchers for each series."""
        return self.access.settings.matchers

    def ask(self, fields: Mapping[str, Any]) -> Any:
        """Return a range query's answer. Raises PluginError."""
        body, url = urllib.parse.urlencode(fields).encode(), f"{self.url.rstrip('/')}/api/v1/query_range"
        try:
            request = urllib.request.Request(url, body, self.access.headers())  # noqa: S310  checked: http(s)
            with self._open(request) as answer:
                return self._parse(answer.read())
        except SettingError as error:
            raise UsageError(_rename(error)) from error
        except urllib.error.HTTPError as error:
            raise self._refuse(error) from error
        except (OSError, ValueError) as error:
            raise ServerError(f"Prometheus at {self.url} did not answer: {error}") from error

    def _open(self, request: urllib.request.Request) -> Any:
        trust = self.access.trust()
        context = trust if isinstance(trust, ssl.SSLContext) else None
        opener = urllib.request.build_opener(_NoRedirect, urllib.request.HTTPSHandler(context=context))
        return opener.open(request, timeout=TIMEOUT_SECONDS)

    def _refuse(self, error: urllib.error.HTTPError) -> PluginError:
        if error.code in CREDENTIALS:
            return ServerError(f"Prometheus at {self.url} answered {error.code}: {CREDENTIALS[error.code]}")
        if "location" in error.headers:
            return ServerError(f"Prometheus at {self.url} redirects: write {error.headers['location']}")
        try:
            self._parse(error.read(), error.code)
        except ServerError as refused:
            return refused
        return ServerError(f"Prometheus at {self.url} refused the query: status {error.code}")

    def _parse(self, body: bytes, status: int = 200) -> Any:
        try:
            found = json.loads(body)
        except ValueError as error:
            raise ServerError(
                f"the server at {self.url} is no Prometheus: status {status} and no JSON"
            ) from error
        if not isinstance(found, dict) or found.get("status") != "success":
            reason = found.get("error") if isinstance(found, dict) else None
            raise ServerError(f"Prometheus at {self.url} refused the query: {reason or f'status {status}'}")
        try:
            check_whole(found)
        except SignalError as error:
            raise ServerError(f"{error}; ask again, or ask one that has all of it") from error
        return found


def read_flags(arguments: argparse.Namespace) -> Prometheus:
    """Return the Prometheus of the flags. Raises UsageError if they contradict each other."""
    if not _is_address(arguments.from_prometheus):
        raise UsageError(
            f"{OWN_FLAG} {arguments.from_prometheus}: write an address such as http://127.0.0.1:9090"
        )
    try:
        settings = read_prometheus(arguments.from_prometheus, arguments)
    except SettingError as error:
        raise UsageError(_rename(error)) from error
    return Prometheus(Access(settings))


def _is_address(url: str) -> bool:
    """Whether a URL can be queried at all."""
    try:
        parts = urllib.parse.urlsplit(url)
        return parts.scheme in ("http", "https") and parts.port != 0 and not re.search(r"[^!-~]", url)
    except ValueError:  # of the host or of the port
        return False


def _rename(error: SettingError) -> str:
    """Return the operator's message with the plugin's flag."""
    return str(error).replace(PREFIX, OWN_FLAG)
