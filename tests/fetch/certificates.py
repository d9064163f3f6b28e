"""Servers with a certificate that is its own authority, as inside a company."""

import ssl
import subprocess
from pathlib import Path


def certify(folder: Path, name: str) -> tuple[Path, ssl.SSLContext]:
    """A certificate that is its own authority, and a server's context with it."""
    certificate, key = folder / f"{name}.pem", folder / f"{name}-key.pem"
    _make_certificate(certificate, key)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    return certificate, context


def _make_certificate(certificate: Path, key: Path) -> None:
    options = ["-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=127.0.0.1"]
    files = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(["openssl", "req", *options, *files], check=True, capture_output=True)
