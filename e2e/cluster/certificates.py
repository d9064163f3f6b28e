"""The cluster's certificates and keys, made by our small Go program (its standard library signs)."""

import subprocess
from pathlib import Path

from e2e.cluster.errors import PartFailedError
from e2e.cluster.settings import API_SERVICE_ADDRESS, KUBELET_ADDRESS

HOSTS = (
    "127.0.0.1",
    KUBELET_ADDRESS,
    API_SERVICE_ADDRESS,
    "localhost",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
)


def make_certificates(program: Path, folder: Path) -> None:
    """Make them once: an authority, the server's, one for each user, and the token keys."""
    if (folder / "tokens.key").exists():  # written last
        return
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    command = [str(program), "--folder", str(folder), "--hosts", ",".join(HOSTS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise PartFailedError("certificates", done.stderr.strip() or f"exit status {done.returncode}")
