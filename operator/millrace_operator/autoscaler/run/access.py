"""How to reach Prometheus: what says who we are, and whom to trust. Secrets come from files alone.

A file is read again when it changes, because tokens and certificates are renewed under the same name.
"""

import ssl
from base64 import b64encode
from dataclasses import dataclass, field
from pathlib import Path

from millrace_operator.autoscaler.run.settings import TENANT_HEADER, AccessError, PrometheusSettings


@dataclass
class Access:
    """Reads the settings' files when they are needed. Raises AccessError for one that cannot be read."""

    settings: PrometheusSettings
    _context: ssl.SSLContext | None = field(default=None, init=False)
    _stamp: object = field(default=None, init=False)

    def headers(self) -> dict[str, str]:
        """Return what each question is sent with."""
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
        """Return whom to trust, made anew only when a file has changed."""
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
        raise AccessError(f"no certificates for Prometheus in {named}: {error}; write PEM files") from error
    if settings.is_insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _stamp(path: Path | None) -> object:
    """Return what is another value when the file is another."""
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
        raise AccessError(f"no credentials for Prometheus in {path}: {why}") from error


def _read_line(path: Path) -> str:
    """Return the one line of a file. A header can have no other characters than these."""
    line = _read(path).strip()
    if not line or not line.isprintable():
        raise AccessError(f"no credentials for Prometheus in {path}: write one line of printable characters")
    return line


def _read_headers(path: Path) -> dict[str, str]:
    found = {}
    for number, line in enumerate(_read(path).splitlines(), start=1):
        name, colon, value = (part.strip() for part in line.partition(":"))
        is_name = name.replace("-", "").replace("_", "").isalnum() and name.isascii()
        if line.strip() and not (colon and is_name and value.isprintable()):
            raise AccessError(f"no header for Prometheus in line {number} of {path}: write Name: value")
        if line.strip():
            found[name] = value
    return found
