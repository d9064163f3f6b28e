"""Clients' keys in a Secret: an entry is a client, its value JSON with hashes of its keys.

The gateway reads the same form. A key has 256 random bits, so a plain SHA-256 protects it as slow ones would.
"""

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from millrace_kubectl.errors import ConflictError, PluginError
from millrace_kubectl.kubectl import Obj, Secrets
from millrace_runtime import contract

PREFIX = "mr-"
KEY_BYTES = 32
MOST_KEYS = 2
"""The old and the new key of a rotation."""
NUM_TRIES = 5
"""To change a Secret that somebody else changes meanwhile."""
FIGURES = ("requestsPerMinute", "tokensPerMinute", "concurrency")
_HASH = re.compile(r"[0-9a-f]{64}")
_CLIENT = re.compile(r"[A-Za-z0-9][-._A-Za-z0-9]{0,62}")
_NAME = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_MODEL = re.compile(rf"{_NAME}|{_NAME}/({_NAME}|[*])")


@dataclass(frozen=True)
class Client:
    """One entry of a Secret."""

    hashes: tuple[str, ...] = ()
    """SHA-256 of its keys in hex, the newest last."""
    models: tuple[str, ...] | None = None
    """The InferenceServices that it may use; None: all that name the Secret."""
    limits: tuple[Mapping[str, int], ...] | None = None
    """Limits instead of the service's; None: the service's."""

    def render(self) -> str:
        """Return the entry's value, in base64 as a Secret has it."""
        parts = {"sha256": self.hashes, "models": self.models, "rateLimits": self.limits}
        text = json.dumps({name: value for name, value in parts.items() if value is not None})
        return base64.b64encode(text.encode()).decode()

    def add_key(self, key: str) -> "Client":
        """Return the client with one more key."""
        return replace(self, hashes=(*self.hashes, hash_key(key)))

    def keep_newest(self) -> "Client":
        """Return the client with its newest key alone."""
        return replace(self, hashes=self.hashes[-1:])


def make_key(random: bytes) -> str:
    """Return a key of 32 random bytes, as clients send it."""
    return PREFIX + base64.urlsafe_b64encode(random).rstrip(b"=").decode()


def hash_key(key: str) -> str:
    """Return the SHA-256 of a key in hex, as the Secret has it."""
    return hashlib.sha256(key.encode()).hexdigest()


def is_client_name(text: str) -> bool:
    """Whether a client may have this name, which is a key of a Secret's data."""
    return _CLIENT.fullmatch(text) is not None


def is_model(text: str) -> bool:
    """Whether this names a service, or all services of a namespace."""
    return _MODEL.fullmatch(text) is not None


def read_client(name: str, value: str) -> Client:
    """Return the client in an entry of a Secret. Raises PluginError if the gateway would skip the entry."""
    try:
        found = json.loads(base64.b64decode(value, validate=True))
        return Client(
            tuple(map(_read_hash, _read_list(found["sha256"]))),
            None if "models" not in found else tuple(_read_list(found["models"])),
            None if "rateLimits" not in found else tuple(map(_read_limit, found["rateLimits"])),
        )
    except (binascii.Error, ValueError, LookupError, TypeError) as error:
        raise PluginError(
            f"the entry of client {name} can't be read, so the gateway skips it: revoke it, and create a key"
        ) from error


def _read_list(found: Any) -> list[str]:
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise TypeError(found)
    return found


def _read_hash(text: str) -> str:
    if not _HASH.fullmatch(text):
        raise ValueError(text)
    return text


def _read_limit(found: Any) -> Mapping[str, int]:
    return {name: int(found[name]) for name in FIGURES if name in found}


Change = Callable[[Client | None], Client | None]


def change_client(
    found: Secrets, name: str, client: str, change: Change, *, is_removal: bool = False
) -> Client | None:
    """Change a client of a Secret, and return it as it was before. Raises PluginError.

    Somebody else may change the Secret meanwhile: then it is read again, a few times.
    """
    for _ in range(NUM_TRIES):
        secret = found.fetch(name)
        before = _find_client(secret, client, is_removal=is_removal)
        after = change(before)
        try:
            if secret is None and after is not None:
                found.create(name, {contract.LABEL_API_KEYS: "true"}, {client: after.render()})
            elif secret is not None and after != before:
                found.change(secret, {client: None if after is None else after.render()})
        except ConflictError:
            continue
        return before
    raise PluginError(f"Secret {name} is changed all the time; try again in a moment")


def _find_client(secret: Obj | None, client: str, *, is_removal: bool) -> Client | None:
    """Return the client as the Secret has it; for a removal, also a client whose entry is not readable."""
    if secret is None:
        return None
    _check_label(secret)
    value = (secret.get("data") or {}).get(client)
    if value is None:
        return None
    try:
        return read_client(client, value)
    except PluginError:
        if is_removal:
            return Client()
        raise


def _check_label(secret: Obj) -> None:
    """Raise PluginError for a Secret that gateways do not read, which may be for something else."""
    metadata = secret["metadata"]
    if (metadata.get("labels") or {}).get(contract.LABEL_API_KEYS) != "true":
        name = metadata["name"]
        raise PluginError(
            f"Secret {name} is not for clients' keys: name another one, or if it is, write "
            f"kubectl label secret {name} {contract.LABEL_API_KEYS}=true"
        )
