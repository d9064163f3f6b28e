"""Which services a model name without a namespace leads to: gateway and operator decide it alike. Pure.

Such a name is a claim that anybody can write into `spec.model.servedName`. Age decides nothing: a name that
services of two namespaces claim leads nowhere, so that no request reaches a namespace by another claim. What
the platform pins leads to the pinned service alone, whoever claims it. A name that reads as
`<namespace>/<name>` is an address: no other namespace can claim it, also while no service has it.
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
        self._names: dict[Key, str] = {}
        self._claims: dict[str, dict[str, set[Key]]] = {}
        """The claimants by name and namespace. A name has an entry while somebody may claim it and does."""

    def put(self, key: Key, name: str) -> None:
        """Know that a service claims this name, and no other any more."""
        if self._names.get(key) == name:
            return
        self.remove(key)
        self._names[key] = name
        if reads_as_address(name, key[0]):
            return
        namespaces = self._claims.setdefault(name, {})
        is_first = key[0] not in namespaces
        namespaces.setdefault(key[0], set()).add(key)
        if is_first and len(namespaces) == 2:
            self._report(namespaces, key)

    def remove(self, key: Key) -> None:
        """Know that a service claims nothing any more."""
        name = self._names.pop(key, None)
        namespaces = self._claims.get(name, {}) if name is not None else {}
        claimants = namespaces.get(key[0], set())
        if key not in claimants or name is None:
            return
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

    def judge(self, key: Key) -> Standing:
        """Return how a service's claim stands. One that claims nothing, as it is gone, is in nobody's way."""
        name = self._names.get(key)
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


def reads_as_address(name: str, namespace: str) -> bool:
    """Whether a model name reads as `<namespace>/<name>` of another namespace than this one."""
    first, slash, rest = name.partition("/")
    return bool(slash) and first != namespace and all(map(_LABEL.fullmatch, (first, rest)))
