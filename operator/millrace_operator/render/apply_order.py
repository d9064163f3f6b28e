"""In which order children are made: each after what it needs. Pure.

Without its ServiceAccount a Deployment makes no pod. Without its ControllerRevision, which says what its
pods are, the next operator could not make it anew. So it waits where one of them is refused, or is somebody
else's; status names that one. Only the making waits: what is there is scaled and mended, whatever happened to
what it once needed.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from millrace_operator.kube.kinds import Obj
from millrace_operator.observed.snapshot import ObjectId, object_id


def is_there(_: Obj) -> bool:
    """Whether it is enough that an object exists."""
    return True


@dataclass(frozen=True)
class Need:
    """An object that another one cannot be made before."""

    id: ObjectId
    is_met: Callable[[Obj], bool] = is_there
    """Whether the object is as it must be: of a Job, whether it is complete."""


@dataclass(frozen=True)
class Child:
    """An object that is to exist, and what it needs."""

    obj: Obj
    needs: tuple[Need, ...] = ()
    is_optional: bool = False
    """Whether all goes on without it where it can't be made, for whatever reason."""

    @property
    def id(self) -> ObjectId:
        """Its kind and name."""
        return object_id(self.obj)


def need(*objects: Obj) -> tuple[Need, ...]:
    """Return the need for each of these objects to be there."""
    return tuple(Need(object_id(obj)) for obj in objects)


def find_unmet(needs: Iterable[Need], standing: Mapping[ObjectId, Obj]) -> tuple[ObjectId, ...]:
    """Return what is not there, or not as it must be. `standing` are our own objects, as they are now."""
    return tuple(each.id for each in needs if each.id not in standing or not each.is_met(standing[each.id]))
