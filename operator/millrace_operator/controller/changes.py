"""Which change of a watched object is worth a look at its service, and which answer comes too late. Pure.

A write of ours comes back from the watch as it is in the cache already. Argo CD, backup tools and people put
labels and annotations of their own on services: each of them was a reconcile that found nothing to do.
"""

from typing import Any

from millrace_operator.kube.kinds import Obj, Role, kind_of
from millrace_runtime import contract

PREFIX = f"{contract.GROUP}/"
"""Of the annotations on a service that say something to us."""
UNREAD = frozenset({"resourceVersion", "managedFields"})
UNREAD_OF_SERVICES = UNREAD | {"labels", "annotations"}
"""A service's labels are read by nobody; of its annotations, ours are."""


def is_news(before: Obj | None, after: Obj | None) -> bool:
    """Whether a plan may be another one, now that an object is as `after`. None: it is not there."""
    if before is after:
        return False
    if before is None or after is None:
        return True
    return _read(before) != _read(after)


def is_late(held: Obj | None, written: Obj) -> bool:
    """Whether what a write of ours returned is gone by now, or was made anew: that event came first.

    Services and pods are made by others, so one that is not there is gone. A child that is not there may be
    what this write has created: who changed one that was there looks for it first, and who creates one lets
    the cache note what ends meanwhile.
    """
    if held is None:
        return kind_of(written).role in (Role.SERVICE, Role.POD)
    known, told = held["metadata"], written["metadata"]
    is_another = known.get("uid") != told.get("uid")
    return is_another and int(known["resourceVersion"]) > int(told["resourceVersion"])


def _read(obj: Obj) -> tuple[Any, ...]:
    """Return the parts of an object that plans read, in a form that can be compared."""
    metadata = obj["metadata"]
    is_service = kind_of(obj).role is Role.SERVICE
    unread = UNREAD_OF_SERVICES if is_service else UNREAD
    words = (metadata.get("annotations") or {}).items() if is_service else ()
    return (
        {field: value for field, value in obj.items() if field != "metadata"},
        {field: value for field, value in metadata.items() if field not in unread},
        {name: text for name, text in words if name.startswith(PREFIX)},
    )
