"""Servers with a certificate that is its own authority, as inside a company."""

import ssl
import subprocess
import tempfile
from functools import cache
from pathlib import Path


def certify(folder: Path, name: str) -> tuple[Path, ssl.SSLContext]:
    """A certificate that is its own authority, another for each name, and a server's context with it."""
    certificate, key = folder / f"{name}.pem", folder / f"{name}-key.pem"
    for path, content in zip((certificate, key), _make_certificate(name), strict=True):
        path.write_bytes(content)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    return certificate, context


@cache
def _make_certificate(_name: str) -> tuple[bytes, bytes]:
    options = ["-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=127.0.0.1"]
    with tempfile.TemporaryDirectory() as folder:
        certificate, key = Path(folder) / "certificate.pem", Path(folder) / "key.pem"
        files = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
        subprocess.run(["openssl", "req", *options, *files], check=True, capture_output=True)
        return certificate.read_bytes(), key.read_bytes()
