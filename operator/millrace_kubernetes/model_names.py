"""Which services a model name without a namespace leads to. Gateway and operator decide it alike. Pure.

Such a name is a claim, and anybody can write one into `spec.model.servedName`. A service also claims each
name that its Ready replicas run with: after an edit they have the previous name until they are replaced,
after a rollback for good. Age decides nothing: a name that services of two namespaces claim leads nowhere, so
no request reaches a namespace through a claim of another one. A name that the platform pins leads to the
pinned service alone, even if others claim it. A name of the form `<namespace>/<name>` is an address: no other
namespace can claim it, even while no service has it.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Any, Generic, TypeVar

Key = TypeVar("Key", bound=tuple[str, str])
"""Namespace and name of a service."""
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


class Standing(Enum):
    """How a service's claim to its model name stands."""

    HELD = "held"
    SHARED = "shared"
    """Services of other namespaces claim the name too."""
    PINNED = "pinned"
    """The platform gives the name to another service."""
    ADDRESS = "address"
    """The name has the form of an address in another namespace."""


class ModelNames(Generic[Key]):
    """Owner of the claims. `pins` maps the names that the platform pins to their services.

    It calls `on_change` with each service if another service's claim may have changed its standing.
    """

    def __init__(self, pins: Mapping[str, Key], on_change: Callable[[Key], object] = lambda _: None) -> None:
        self._pins = pins
        self._on_change = on_change
        self._wanted: dict[Key, str] = {}
        """The name in each service's spec."""
        self._running: dict[Key, frozenset[str]] = {}
        """The names that Ready replicas run with."""
        self._names: dict[Key, frozenset[str]] = {}
        """The claimed and the running names, of the services that exist."""
        self._claims: dict[str, dict[str, set[Key]]] = {}
        """The claimants by name and namespace. A name has an entry while a service has a valid claim to
        it."""

    def put(self, key: Key, name: str) -> None:
        """Record the name in a service's spec, in place of the one before."""
        self._wanted[key] = name
        self._update(key)

    def put_running(self, key: Key, names: frozenset[str]) -> None:
        """Record the names that a service's Ready replicas run with."""
        self._running[key] = names
        if not names:
            del self._running[key]
        self._update(key)

    def remove(self, key: Key) -> None:
        """Record that a service is gone. The names that its last replicas run with are no claims."""
        self._wanted.pop(key, None)
        self._update(key)

    def _update(self, key: Key) -> None:
        """Bring a service's claims up to date."""
        wanted, before = self._wanted.get(key), self._names.pop(key, frozenset())
        now = frozenset() if wanted is None else self._running.get(key, frozenset()) | {wanted}
        if now:
            self._names[key] = now
        for name in before - now:
            self._withdraw(key, name)
        for name in now - before:
            self._claim(key, name)

    def _claim(self, key: Key, name: str) -> None:
        if reads_as_address(name, key[0]):
            return
        namespaces = self._claims.setdefault(name, {})
        is_first = key[0] not in namespaces
        namespaces.setdefault(key[0], set()).add(key)
        if is_first and len(namespaces) == 2:
            self._report(namespaces, key)

    def _withdraw(self, key: Key, name: str) -> None:
        if reads_as_address(name, key[0]):
            return
        namespaces = self._claims[name]
        claimants = namespaces[key[0]]
        claimants.remove(key)
        if claimants:
            return
        del namespaces[key[0]]
        if not namespaces:
            del self._claims[name]
        elif len(namespaces) == 1:
            self._report(namespaces, key)

    def find(self, name: str) -> tuple[Key, ...]:
        """Return the services that a name leads to, all of one namespace; none if it leads nowhere."""
        if name in self._pins:
            pinned = self._pins[name]
            return (pinned,) if pinned in self._names else ()
        namespaces = self._claims.get(name, {})
        return tuple(key for keys in namespaces.values() for key in keys) if len(namespaces) == 1 else ()

    def is_pinned(self, name: str) -> bool:
        """Whether the platform gives this name to a service."""
        return name in self._pins

    def list_pinned(self) -> list[str]:
        """Return the names that the platform gives to services that exist."""
        return [name for name, key in self._pins.items() if key in self._names]

    def list_held(self) -> list[str]:
        """Return every name that leads to a service."""
        claimed = [name for name in self._claims if name not in self._pins and self.find(name)]
        return [*self.list_pinned(), *claimed]

    def list_claimed(self, key: Key) -> frozenset[str]:
        """Return the names that a service claims, by its spec or by its replicas."""
        return self._names.get(key, frozenset())

    def is_name_of(self, name: str, key: Key) -> bool:
        """Whether a name means this service if its address is known: even a name that others claim too."""
        return name in self._names.get(key, ()) or self._pins.get(name) == key or name == "/".join(key)

    def list_former(self, key: Key) -> list[str]:
        """Return the names that lead to a service only as replicas still run with them."""
        names = self._running.get(key, frozenset()) - {self._wanted.get(key)}
        return sorted(name for name in names if key in self.find(name))

    def judge(self, key: Key) -> Standing:
        """Return how the claim in a service's spec stands. The claim of a service that is gone counts as
        held.
        """
        name = self._wanted.get(key)
        if name is None:
            return Standing.HELD
        if name in self._pins:
            return Standing.HELD if self._pins[name] == key else Standing.PINNED
        if reads_as_address(name, key[0]):
            return Standing.ADDRESS
        return Standing.HELD if len(self._claims[name]) == 1 else Standing.SHARED

    def _report(self, namespaces: Mapping[str, Iterable[Key]], cause: Key) -> None:
        for keys in namespaces.values():
            for key in keys:
                if key != cause:
                    self._on_change(key)


def read_served_name(service: Mapping[str, Any]) -> str:
    """Return the model name that an InferenceService claims."""
    spec = service.get("spec")
    model = spec.get("model") if isinstance(spec, Mapping) else None
    name = model.get("servedName") if isinstance(model, Mapping) else None
    return str(name or service["metadata"]["name"])


def read_running_name(pod: Mapping[str, Any], container: str, flag: str) -> str | None:
    """Return the model name that a pod's container gets by this flag; None without the flag."""
    containers = (pod.get("spec") or {}).get("containers") or ()
    own: Mapping[str, Any] = next((one for one in containers if one.get("name") == container), {})
    arguments = list(own.get("args") or ())
    at = arguments.index(flag) + 1 if flag in arguments else len(arguments)
    return str(arguments[at]) if at < len(arguments) else None


def reads_as_address(name: str, namespace: str) -> bool:
    """Whether a model name has the form `<namespace>/<name>`, with another namespace than this one."""
    first, slash, rest = name.partition("/")
    return bool(slash) and first != namespace and all(map(_LABEL.fullmatch, (first, rest)))
