"""Kubeconfig files with everything in them, so that a copy works anywhere on this machine.

They are JSON, which is YAML too: Python has no YAML of its own, and `make down` needs no environment.
"""

import base64
import json
import os
from pathlib import Path
from typing import Any


def render_kubeconfig(server: str, keys: Path, user: str) -> str:
    """Render a kubeconfig for one user whose certificate and key are in `keys`."""
    config: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "millrace",
        "clusters": [
            {
                "name": "millrace",
                "cluster": {"server": server, **_data("certificate-authority", keys, "ca.crt")},
            }
        ],
        "users": [
            {
                "name": user,
                "user": {
                    **_data("client-certificate", keys, f"{user}.crt"),
                    **_data("client-key", keys, f"{user}.key"),
                },
            }
        ],
        "contexts": [{"name": "millrace", "context": {"cluster": "millrace", "user": user}}],
    }
    return json.dumps(config, indent=2)


def _data(field: str, keys: Path, name: str) -> dict[str, str]:
    return {f"{field}-data": base64.b64encode((keys / name).read_bytes()).decode()}


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner may read."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
