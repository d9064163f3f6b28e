"""The scaling loop's settings from the command line, and the files with credentials that they name.

The operator reads such a file again when it changes, because tokens and certificates are renewed under the
same name.
"""

import argparse
import math
import re
import ssl
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from millrace_operator.autoscaler.decide.policy import Policy

TENANT_HEADER: Final = "X-Scope-OrgID"
"""The header that names a tenant's series for Mimir, Cortex and Thanos' front ends."""

LONGEST_TICK: Final = 5.0
"""In seconds. The operator sees by its queries how often replicas are scraped, so slow ones would
mislead it.
"""

_MATCHER = r'[A-Za-z_]\w*\s*(=|!=|=~|!~)\s*"([^"\\]|\\.)*"'
MATCHERS: Final = re.compile(rf"{_MATCHER}(\s*,\s*{_MATCHER})*")


class SettingError(Exception):
    """These settings cannot work; the text says what to set, and contains no secret."""


@dataclass(frozen=True)
class PrometheusSettings:
    """Prometheus' address and how to query it, from the command line."""

    url: str
    matchers: str = ""
    """More label matchers for all series of replicas and gateway."""
    tenant: str = ""
    token_file: Path | None = None
    username_file: Path | None = None
    password_file: Path | None = None
    headers_file: Path | None = None
    """One `Name: value` a line."""
    ca_file: Path | None = None
    """Certificates to trust instead of the system's."""
    certificate_file: Path | None = None
    key_file: Path | None = None
    is_insecure: bool = False
    """Whether to trust any certificate."""

    def __post_init__(self) -> None:
        for wrong in self._list_wrong():
            raise SettingError(wrong)

    @property
    def is_secure(self) -> bool:
        """Whether queries go over TLS."""
        return self.url.startswith("https://")

    def _list_wrong(self) -> Iterator[str]:
        yield from self._list_wrong_urls()
        if (self.username_file is None) != (self.password_file is None):
            yield "write --prometheus-username-file and --prometheus-password-file, or neither"
        if (self.certificate_file is None) != (self.key_file is None):
            yield "write --prometheus-certificate-file and --prometheus-key-file, or neither"
        if self.token_file and self.username_file:
            yield "write --prometheus-token-file or --prometheus-username-file, not both"
        if not self.tenant.isprintable():
            yield "--prometheus-tenant has a character that no header may have; write a name"
        if self.matchers and not MATCHERS.fullmatch(self.matchers):
            yield f'--prometheus-matchers is {self.matchers!r}; write it as in PromQL: cluster="eu"'
        if self.is_insecure and self.ca_file:
            yield "write --prometheus-ca-file or --prometheus-insecure, not both"

    def _list_wrong_urls(self) -> Iterator[str]:
        try:
            url = urlsplit(self.url)
            is_url = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
        except ValueError:
            is_url = False
        if not is_url:
            yield "--prometheus-url is no URL; write one that begins with http:// or https://"
            return
        if url.username is not None:
            yield (
                "--prometheus-url has a name or a password in it, which everybody can read; write "
                "--prometheus-username-file and --prometheus-password-file instead"
            )
        if url.query or url.fragment:
            yield "--prometheus-url has a ? or # in it; write the part before /api/v1 alone"
        has_tls = self.is_insecure or self.ca_file or self.certificate_file
        if has_tls and url.scheme == "http":
            yield "--prometheus-url begins with http://; write https:// where certificates are to be used"


def read_prometheus(url: str, flags: argparse.Namespace) -> PrometheusSettings:
    """Return the settings in the flags. Raises SettingError if they contradict each other."""
    return PrometheusSettings(
        url=url,
        matchers=flags.prometheus_matchers,
        tenant=flags.prometheus_tenant,
        token_file=flags.prometheus_token_file,
        username_file=flags.prometheus_username_file,
        password_file=flags.prometheus_password_file,
        headers_file=flags.prometheus_headers_file,
        ca_file=flags.prometheus_ca_file,
        certificate_file=flags.prometheus_certificate_file,
        key_file=flags.prometheus_key_file,
        is_insecure=flags.prometheus_insecure,
    )


@dataclass(frozen=True)
class ScalingSettings:
    """The settings of the scaling loop, the same for every service."""

    prometheus: PrometheusSettings
    tick_seconds: float = Policy.tick_seconds
    """Between two decisions."""
    scale_down_window_seconds: float = Policy.scale_down_window_seconds
    """A scale-down goes only as low as every moment of this time allowed."""

    def __post_init__(self) -> None:
        if not 0 < self.tick_seconds <= LONGEST_TICK:
            raise SettingError(f"write --tick-seconds above 0 and up to {LONGEST_TICK:g}")
        if not 0 < self.scale_down_window_seconds < math.inf:
            raise SettingError("write --scale-down-window-seconds above 0")


@dataclass
class Access:
    """Reads the settings' files when a query needs them. Raises SettingError if one cannot be read."""

    settings: PrometheusSettings
    _context: ssl.SSLContext | None = field(default=None, init=False)
    _stamp: object = field(default=None, init=False)

    def headers(self) -> dict[str, str]:
        """Return the headers of each query."""
        settings = self.settings
        found = _read_headers(settings.headers_file) if settings.headers_file else {}
        if settings.tenant:
            found[TENANT_HEADER] = settings.tenant
        if settings.token_file:
            found["Authorization"] = f"Bearer {_read_line(settings.token_file)}"
        if settings.username_file and settings.password_file:
            pair = f"{_read_line(settings.username_file)}:{_read_line(settings.password_file)}"
            found["Authorization"] = f"Basic {b64encode(pair.encode()).decode()}"
        return found

    def trust(self) -> ssl.SSLContext | bool:
        """Return the certificates to trust, loaded again only when a file has changed."""
        if not self.settings.is_secure:
            return True
        files = (self.settings.ca_file, self.settings.certificate_file, self.settings.key_file)
        stamp = tuple(_stamp(path) for path in files)
        if self._context is None or stamp != self._stamp:
            self._context, self._stamp = _make_context(self.settings), stamp
        return self._context


def _make_context(settings: PrometheusSettings) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=settings.ca_file)
        if settings.certificate_file and settings.key_file:
            context.load_cert_chain(settings.certificate_file, settings.key_file)
    except (ssl.SSLError, OSError) as error:
        named = ", ".join(str(path) for path in (settings.ca_file, settings.certificate_file) if path)
        raise SettingError(f"no certificates for Prometheus in {named}: {error}; write PEM files") from error
    if settings.is_insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _stamp(path: Path | None) -> object:
    """Return a value that changes with the file."""
    try:
        found = path.stat() if path else None
    except OSError:
        return None
    return found and (found.st_ino, found.st_mtime_ns, found.st_size)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise SettingError(f"no credentials for Prometheus in {path}: {why}") from error


def _read_line(path: Path) -> str:
    """Return the one line of a file. A header allows printable characters only."""
    line = _read(path).strip()
    if not line or not line.isprintable():
        raise SettingError(f"no credentials for Prometheus in {path}: write one line of printable characters")
    return line


def _read_headers(path: Path) -> dict[str, str]:
    found = {}
    for number, line in enumerate(_read(path).splitlines(), start=1):
        name, colon, value = (part.strip() for part in line.partition(":"))
        is_name = name.replace("-", "").replace("_", "").isalnum() and name.isascii()
        if line.strip() and not (colon and is_name and value.isprintable()):
            raise SettingError(f"no header for Prometheus in line {number} of {path}: write Name: value")
        if line.strip():
            found[name] = value
    return found
