"""Which certificate authorities are trusted: the system's, and those of a file beside them."""

import os
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from millrace_fetch.errors import SourceError

VARIABLE = "SSL_CERT_FILE"
"""Each library here reads it, and takes it instead of the system's."""
_OF_SYSTEMS = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem")
"""Of Debian, Fedora and Alpine: Python does not know all of them by name."""


@contextmanager
def trusting(more: Path | None) -> Iterator[None]:
    """While entered, trust the authorities in this PEM file too. Where there is none, all is as before.

    Raises SourceError where it has no certificates.
    """
    if more is None or not more.exists():
        yield
        return
    with tempfile.NamedTemporaryFile("w", suffix=".pem", encoding="utf-8") as bundle:
        bundle.write(f"{_read_system()}\n{_read_authorities(more)}\n")
        bundle.flush()
        before = os.environ.get(VARIABLE)
        os.environ[VARIABLE] = bundle.name
        try:
            yield
        finally:
            if before is None:
                del os.environ[VARIABLE]
            else:
                os.environ[VARIABLE] = before


def _read_authorities(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8")
        ssl.create_default_context().load_verify_locations(cadata=text)
    except (OSError, ValueError) as error:  # what OpenSSL can't read is an OSError
        raise SourceError(
            f"{path} has no certificates to trust: put those of your authority there as PEM, "
            "which begins with -----BEGIN CERTIFICATE-----"
        ) from error
    return text


def _read_system() -> str:
    """Return those that are trusted anyway. Where none is found, the file's alone are."""
    named = os.environ.get(VARIABLE) or ssl.get_default_verify_paths().cafile
    places = [named] if named else list(_OF_SYSTEMS)
    found = next((Path(place) for place in places if Path(place).is_file()), None)
    return "" if found is None else found.read_text(encoding="utf-8", errors="replace")
