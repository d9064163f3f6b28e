"""Which services a model name without a namespace leads to: gateway and operator decide it alike. Pure.

Such a name is a claim that anybody can write into `spec.model.servedName`. A service also claims each name
that its Ready replicas run with: after an edit they have the former one until they are replaced, after a
rollback for good. Age decides nothing: a name that services of two namespaces claim leads nowhere, so that no
request reaches a namespace by another claim. What the platform pins leads to the pinned service alone,
whoever claims it. A name that reads as `<namespace>/<name>` is an address: no other namespace can claim it,
also while no service has it.
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
    """The name reads as the address of a service in another namespace."""


class ModelNames(Generic[Key]):
    """Owner of the claims. `pins` has the services that the platform gives names to.

    `on_change` is called with each service whose standing another service's claim may have changed.
    """

    def __init__(self, pins: Mapping[str, Key], on_change: Callable[[Key], object] = lambda _: None) -> None:
        self._pins = pins
        self._on_change = on_change
        self._wanted: dict[Key, str] = {}
        """The name in each service's spec."""
        self._running: dict[Key, frozenset[str]] = {}
        """The names that Ready replicas run with."""
        self._names: dict[Key, frozenset[str]] = {}
        """Both, of the services that are there."""
        self._claims: dict[str, dict[str, set[Key]]] = {}
        """The claimants by name and namespace. A name has an entry while somebody may claim it and does."""

    def put(self, key: Key, name: str) -> None:
        """Know that a service's spec has this name, and no other any more."""
        self._wanted[key] = name
        self._update(key)

    def put_running(self, key: Key, names: frozenset[str]) -> None:
        """Know which names a service's Ready replicas run with."""
        self._running[key] = names
        if not names:
            del self._running[key]
        self._update(key)

    def remove(self, key: Key) -> None:
        """Know that a service is gone. What its last replicas run with is no claim."""
        self._wanted.pop(key, None)
        self._update(key)

    def _update(self, key: Key) -> None:
        """Make a service's claims what they are now."""
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
        """Return the services that a name leads to, all of one namespace; none where it leads nowhere."""
        if name in self._pins:
            pinned = self._pins[name]
            return (pinned,) if pinned in self._names else ()
        namespaces = self._claims.get(name, {})
        return tuple(key for keys in namespaces.values() for key in keys) if len(namespaces) == 1 else ()

    def is_pinned(self, name: str) -> bool:
        """Whether the platform gives this name to a service."""
        return name in self._pins

    def list_pinned(self) -> list[str]:
        """Return the names that the platform gives to services which are there."""
        return [name for name, key in self._pins.items() if key in self._names]

    def list_held(self) -> list[str]:
        """Return every name that leads to a service."""
        claimed = [name for name in self._claims if name not in self._pins and self.find(name)]
        return [*self.list_pinned(), *claimed]

    def is_name_of(self, name: str, key: Key) -> bool:
        """Whether a name means this service where its address is known: also one that others claim too."""
        return name in self._names.get(key, ()) or self._pins.get(name) == key or name == "/".join(key)

    def list_former(self, key: Key) -> list[str]:
        """Return the names that lead to a service only as replicas still run with them."""
        names = self._running.get(key, frozenset()) - {self._wanted.get(key)}
        return sorted(name for name in names if key in self.find(name))

    def judge(self, key: Key) -> Standing:
        """Return how the claim in a service's spec stands. A service that is gone is in nobody's way."""
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
    """Return the model name that a container of a pod has been given by this flag, None where by none."""
    containers = (pod.get("spec") or {}).get("containers") or ()
    own: Mapping[str, Any] = next((one for one in containers if one.get("name") == container), {})
    arguments = list(own.get("args") or ())
    at = arguments.index(flag) + 1 if flag in arguments else len(arguments)
    return str(arguments[at]) if at < len(arguments) else None


def reads_as_address(name: str, namespace: str) -> bool:
    """Whether a model name reads as `<namespace>/<name>` of another namespace than this one."""
    first, slash, rest = name.partition("/")
    return bool(slash) and first != namespace and all(map(_LABEL.fullmatch, (first, rest)))
