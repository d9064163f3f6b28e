"""Which certificate authorities are trusted: the system's, and those of a file beside them."""

import os
import ssl
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from millrace_fetch.errors import SourceError

VARIABLES = ("SSL_CERT_FILE", "AWS_CA_BUNDLE")
"""Libraries trust what the first one names instead of the system's, and those for S3 the second one's."""
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
        before = {name: os.environ.get(name) for name in VARIABLES}
        os.environ.update(dict.fromkeys(VARIABLES, bundle.name))
        try:
            yield
        finally:
            _restore(before)


def _restore(before: Mapping[str, str | None]) -> None:
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _read_authorities(path: Path) -> str:
    try:
        ssl.create_default_context().load_verify_locations(cafile=str(path))
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:  # what OpenSSL can't read is an OSError
        raise SourceError(
            f"{path} has no certificates to trust: put those of your authority there as PEM, "
            "which begins with -----BEGIN CERTIFICATE-----"
        ) from error


def _read_system() -> str:
    """Return those that are trusted anyway. Where none is found, the file's alone are."""
    named = [place for name in VARIABLES if (place := os.environ.get(name)) and Path(place).is_file()]
    own = ssl.get_default_verify_paths().cafile
    known = [place for place in (own, *_OF_SYSTEMS) if place and Path(place).is_file()]
    places = named or known[:1]
    return "\n".join(Path(place).read_text(encoding="utf-8", errors="replace") for place in places)
