"""Whether a change of a watched object may change a plan. Pure.

A write of ours comes back from the watch as it is in the cache already. Argo CD, backup tools and people put
labels and annotations of their own on services. A reconcile would find nothing to do, so none is queued.
"""

from typing import Any

from millrace_operator.kube.kinds import Obj, Role, kind_of
from millrace_runtime import contract

PREFIX = f"{contract.GROUP}/"
"""The prefix of annotations on a service that have a meaning for the operator."""
UNREAD = frozenset({"resourceVersion", "managedFields"})
UNREAD_OF_SERVICES = UNREAD | {"labels", "annotations"}
"""No plan reads a service's labels. Of its annotations a plan reads only the operator's own."""


def is_news(before: Obj | None, after: Obj | None) -> bool:
    """Whether a plan may change, now that an object is as `after`. None: the object is not there."""
    if before is after:
        return False
    if before is None or after is None:
        return True
    return _read(before) != _read(after)


def _read(obj: Obj) -> tuple[Any, ...]:
    """Return the parts of an object that plans read, in a comparable form."""
    metadata = obj["metadata"]
    is_service = kind_of(obj).role is Role.SERVICE
    unread = UNREAD_OF_SERVICES if is_service else UNREAD
    words = (metadata.get("annotations") or {}).items() if is_service else ()
    return (
        {field: value for field, value in obj.items() if field != "metadata"},
        {field: value for field, value in metadata.items() if field not in unread},
        {name: text for name, text in words if name.startswith(PREFIX)},
    )
