"""An authority of the tests' own, as a company has one: only clients that are configured for it trust it."""

import ssl
import subprocess
from pathlib import Path

NAME = "models.invalid"
"""No DNS has it. The servers' certificates do."""
_EXTENSIONS = (
    f"subjectAltName=IP:127.0.0.1,DNS:{NAME}\n"
    "authorityKeyIdentifier=keyid\nbasicConstraints=critical,CA:FALSE\n"
)


class Authority:
    """Its certificate, and a server's that it has signed."""

    def __init__(self, folder: Path) -> None:
        self.certificate = folder / "authority.pem"
        key, request = folder / "authority.key", folder / "server.csr"
        self._server, self._server_key = folder / "server.pem", folder / "server.key"
        (folder / "extensions").write_text(_EXTENSIONS)
        new = ("req", "-newkey", "rsa:2048", "-nodes", "-subj")
        _run(*new, "/CN=Tests", "-x509", "-days", "2", "-keyout", key, "-out", self.certificate)
        _run(*new, "/CN=127.0.0.1", "-keyout", self._server_key, "-out", request)
        signer = ("-CA", self.certificate, "-CAkey", key, "-CAcreateserial", "-days", "1")
        signed = ("-extfile", folder / "extensions", "-out", self._server)
        _run("x509", "-req", "-in", request, *signer, *signed)

    @property
    def pem(self) -> bytes:
        return self.certificate.read_bytes()

    def context(self) -> ssl.SSLContext:
        """Return what a server speaks TLS with."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self._server, self._server_key)
        return context


def _run(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)
