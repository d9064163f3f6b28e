"""API keys: that of a request, and the clients of all Secrets with keys, by the hash of a key. Pure.

A Secret's entry is a client. Its value is JSON: `{"sha256": [...], "models": [...], "rateLimits": [...]}`. An
entry that can't be read opens nothing; the gateway logs its name once, and reads the others.

The gateway looks up a key by its SHA-256 in a table. The time depends only on that hash, which the client
can't choose, so it learns nothing about other keys.
"""

import base64
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from millrace_gateway.access.errors import (
    KeysUnavailableError,
    MissingKeyError,
    ModelNotAllowedError,
    UnknownKeyError,
)
from millrace_gateway.access.identity import Client, Tenant
from millrace_gateway.access.policy import RateLimit, Scope, SecretRef, read_limits
from millrace_gateway.route.objects import Object, ServiceKey

MOST_ENTRIES = 10_000
"""Entries read of one Secret: a hundred thousand empty ones must not stop the gateway."""
MOST_LINES = 5
"""Lines in the log about one version of a Secret."""
_HASH = re.compile(r"[0-9a-fA-F]{64}")


@dataclass(frozen=True)
class Entry:
    """A client, and the hashes of its keys."""

    raw: object
    """The value as it came: an entry that did not change is not read again."""
    client: Client | None
    """None if the entry can't be read."""
    hashes: tuple[bytes, ...] = ()


@dataclass(frozen=True)
class KeySecret:
    """The entries of one Secret."""

    entries: Mapping[str, Entry] = field(default_factory=dict)
    clients: Mapping[bytes, Client] = field(default_factory=dict)
    """By the hash of a key."""


class KeyIndex:
    """Owner of the clients as last seen.

    `report` gets a line about each entry that can't be read. It names the Secret and the entry, and nothing
    of what is in them.
    """

    def __init__(self, report: Callable[[str], None]) -> None:
        self._report = report
        self._secrets: dict[SecretRef, KeySecret] = {}

    def replace_secrets(self, items: Iterable[Object], namespace: str) -> None:
        """Replace all Secrets of a namespace with this complete list."""
        found = {read_ref(item): item for item in items}
        for ref in [ref for ref in self._secrets if ref.namespace == namespace and ref not in found]:
            del self._secrets[ref]
        for item in found.values():
            self.apply(item)

    def apply(self, item: Object) -> None:
        """Add a Secret, or replace it with this newer version."""
        ref = read_ref(item)
        former = self._secrets.get(ref, KeySecret()).entries
        data = item.get("data") or {}
        problems: list[str] = []
        entries = {}
        for name in sorted(data)[:MOST_ENTRIES]:
            entry = former.get(name)
            if entry is None or entry.raw != data[name]:
                entry = _read_entry(Tenant(*ref, name), data[name], problems)
            entries[name] = entry
        if len(data) > MOST_ENTRIES:
            problems.append(f"it has {len(data)} entries, of which the first {MOST_ENTRIES} count")
        self._secrets[ref] = KeySecret(entries, _index_clients(entries, problems))
        self._report_problems(ref, problems)

    def delete(self, item: Object) -> None:
        """Remove a Secret, if it is there."""
        self._secrets.pop(read_ref(item), None)

    def find(self, secret: SecretRef | None, credentials: str | None, service: ServiceKey) -> Client:
        """Return the client whose key this is, if it may use the service.

        Raises KeysUnavailableError, MissingKeyError, UnknownKeyError and ModelNotAllowedError.
        """
        known = self._secrets.get(secret) if secret else None
        if known is None:
            raise KeysUnavailableError(
                "This service needs API keys, and the gateway can't read them. The service's owner finds "
                "the cause in the condition AccessReady of the InferenceService."
            )
        if not credentials:
            raise MissingKeyError(
                "This service needs an API key. Send it as `Authorization: Bearer …`, api-key or x-api-key."
            )
        client = known.clients.get(hash_key(credentials))
        if client is None:
            raise UnknownKeyError("The API key is not valid for this service.")
        if not client.may_use(service):
            raise ModelNotAllowedError("The API key is valid, but not for this model.")
        return client

    def find_all(self, credentials: str) -> list[Client]:
        """Return every client that has this key, in any Secret."""
        digest = hash_key(credentials)
        return [secret.clients[digest] for secret in self._secrets.values() if digest in secret.clients]

    def _report_problems(self, ref: SecretRef, problems: Sequence[str]) -> None:
        for problem in problems[:MOST_LINES]:
            self._report(f"Secret {ref}: {problem}")
        if len(problems) > MOST_LINES:
            self._report(f"Secret {ref}: and {len(problems) - MOST_LINES} problems more")


def read_ref(item: Object) -> SecretRef:
    """Return a Secret's namespace and name."""
    metadata = item["metadata"]
    return SecretRef(metadata["namespace"], metadata["name"])


def hash_key(key: str) -> bytes:
    """Return the SHA-256 of a key."""
    return hashlib.sha256(key.encode(errors="replace")).digest()


def _index_clients(entries: Mapping[str, Entry], problems: list[str]) -> dict[bytes, Client]:
    """Return the clients by the hashes of their keys; a key of two entries is the first one's."""
    clients: dict[bytes, Client] = {}
    for name, entry in entries.items():
        client = entry.client
        owners = [clients.setdefault(digest, client) for digest in entry.hashes] if client else []
        if any(owner is not client for owner in owners):
            problems.append(f"the entry {name!r} has a key of another entry, which keeps it")
    return clients


def _read_entry(tenant: Tenant, raw: object, problems: list[str]) -> Entry:
    """Return an entry, with its problem in the list if it can't be read: its name, never its value."""
    try:
        return _parse_entry(tenant, raw)
    except (ValueError, TypeError, KeyError, RecursionError):  # never its text: it may quote the value
        problems.append(
            f"the entry {tenant.entry!r} can't be read, so its keys open nothing; "
            "`kubectl millrace key create` writes one that can"
        )
        return Entry(raw, None)


def _parse_entry(tenant: Tenant, raw: object) -> Entry:
    """Read a client. Raises ValueError, TypeError, KeyError or RecursionError."""
    value = json.loads(base64.b64decode(str(raw), validate=True))
    hashes = value["sha256"]
    if not isinstance(hashes, list) or not all(_HASH.fullmatch(str(text)) for text in hashes):
        raise ValueError("sha256")
    models, limits = value.get("models"), value.get("rateLimits")
    client = Client(
        tenant,
        None if models is None else frozenset(_read_models(models, tenant.namespace)),
        None if limits is None else _read_own_limits(limits),
    )
    return Entry(raw, client, tuple(bytes.fromhex(text) for text in hashes))


def _read_models(models: object, namespace: str) -> Iterator[ServiceKey]:
    """Yield services: of the Secret's namespace, unless a name has another. Raises ValueError."""
    if not isinstance(models, list) or not all(isinstance(model, str) and model for model in models):
        raise ValueError("models")
    for model in models:
        before, slash, after = model.partition("/")
        yield ServiceKey(before, after) if slash else ServiceKey(namespace, model)


def _read_own_limits(limits: object) -> tuple[RateLimit, ...]:
    """Return a client's own limits. Raises ValueError for an unknown one: ignored, it would not limit."""
    found = read_limits(limits, Scope.KEY)
    if not isinstance(limits, list) or len(found) < len(limits):
        raise ValueError("rateLimits")
    return tuple(limit for limit in found if limit.per is Scope.KEY)
