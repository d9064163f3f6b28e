"""The credentials that `docker login` stores, and that image pull secrets have.

Of `$DOCKER_CONFIG/config.json`, else `~/.docker/config.json`. A Secret of type kubernetes.io/dockerconfigjson
that is mounted there names its file `.dockerconfigjson`. Credential helpers are programs, and are not run.
"""

import base64
import json
import os
from pathlib import Path
from typing import Any

from millrace_fetch.errors import SourceError

_FILES = ("config.json", ".dockerconfigjson")


def find_basic(registries: tuple[str, ...]) -> str | None:
    """Return name and password of a registry as Basic authorization has them. `registries` are its names."""
    for path in [_folder() / name for name in _FILES]:
        try:
            auths = json.loads(path.read_text()).get("auths", {})
            entries = {_host_of(key): entry for key, entry in auths.items()}
            found = [_read_entry(entries[name]) for name in registries if name in entries]
        except FileNotFoundError:
            continue
        except (OSError, ValueError, AttributeError, TypeError) as error:
            raise SourceError(f"{path} can't be read: it should be the JSON of docker login") from error
        if basic := next(filter(None, found), None):
            return basic
    return None


def _folder() -> Path:
    return Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker")


def _host_of(key: str) -> str:
    """Return the host of a key such as `https://host/v1/`."""
    return key.rpartition("://")[2].partition("/")[0]


def _read_entry(entry: dict[str, Any]) -> str | None:
    if entry.get("username"):
        pair = f"{entry['username']}:{entry.get('password', '')}"
        return base64.b64encode(pair.encode()).decode()
    auth = str(entry.get("auth") or "")
    base64.b64decode(auth, validate=True)
    return auth or None
