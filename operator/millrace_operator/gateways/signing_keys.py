"""When a private key of the gateways is added or removed, and which keys are in use. Pure.

`key_secret.py` acts on it.

A replica accepts the tokens of the public keys in its flags, which are those of the day when its revision was
made. So keys overlap: a new revision gets the newest public key, the gateways keep all private keys, and an
old one goes once no revision names it.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from datetime import UTC, datetime
from typing import NamedTuple

from millrace_operator.kube.kinds import POD, Obj
from millrace_runtime.contract import FLAG_GATEWAY_KEY

ROTATION_SECONDS = 90 * 24 * 3600.0
OVERLAP_SECONDS = 3600.0
"""No key goes in this time after a new one came: a revision may just be made with the key before."""
_FLAG = f"{FLAG_GATEWAY_KEY}="
_NAME = re.compile(r"k-\d{8}T\d{6}Z")
_FORMAT = "k-%Y%m%dT%H%M%SZ"


class KeyPlan(NamedTuple):
    """What to change in the Secret with the private keys."""

    added: str | None = None
    """The name of an entry to add; None for none."""
    removed: tuple[str, ...] = ()
    """The names of entries to remove."""


def name_key(now: float) -> str:
    """Return the name of an entry that is made now, in seconds since 1970. A newer one sorts after it."""
    return datetime.fromtimestamp(now, UTC).strftime(_FORMAT)


def find_newest(entries: Mapping[str, str | None]) -> str | None:
    """Return the name of the newest entry with a key; None without one.

    `entries` has the public keys by name, and None for a value that is no key.
    """
    return max((name for name, public in entries.items() if public and _is_ours(name)), default=None)


def plan_keys(now: float, entries: Mapping[str, str | None], in_use: AbstractSet[str] | None) -> KeyPlan:
    """Return the change that is due. `in_use` are the public keys that revisions and pods name.

    With `in_use` None, which means that not all of them are known, no key goes. Entries that the operator
    can't read stay as they are.
    """
    newest = find_newest(entries)
    age = None if newest is None else _find_age(newest, now)
    if newest is None or age is None or age >= ROTATION_SECONDS:
        name = name_key(now)
        return KeyPlan() if name in entries else KeyPlan(added=name)
    if in_use is None or age < OVERLAP_SECONDS:
        return KeyPlan()
    return KeyPlan(removed=tuple(sorted(_find_unused(entries, in_use) - {newest})))


def _find_unused(entries: Mapping[str, str | None], in_use: AbstractSet[str]) -> set[str]:
    known = {name: public for name, public in entries.items() if public and _is_ours(name)}
    return {name for name, public in known.items() if public not in in_use}


def _is_ours(name: str) -> bool:
    return _find_age(name, 0.0) is not None


def _find_age(name: str, now: float) -> float | None:
    """Return the age of an entry in seconds, by its name; None for a name that is not the operator's."""
    if not _NAME.fullmatch(name):
        return None
    try:
        made = datetime.strptime(name, _FORMAT).replace(tzinfo=UTC)
    except ValueError:
        return None
    return now - made.timestamp()


def list_named_keys(objects: Iterable[Obj]) -> Iterator[str]:
    """Yield the public keys that pods, Deployments and records of revisions name in a container's flags."""
    for obj in objects:
        for container in _find_pod_spec(obj).get("containers") or ():
            words = container.get("args") or ()
            yield from (word.removeprefix(_FLAG) for word in words if word.startswith(_FLAG))


def _find_pod_spec(obj: Obj) -> Mapping[str, list[Obj]]:
    """Return the pod's spec in an object that may have one."""
    holder = obj
    if obj["kind"] != POD.kind:
        holder = (obj.get("data") or obj.get("spec") or {}).get("template") or {}
    spec: Mapping[str, list[Obj]] = holder.get("spec") or {}
    return spec
