"""The methods by which the operator uses the API server. `connection` and `fake` implement them."""

from typing import Protocol

from millrace_operator.kube.kinds import Kind, Listing, Obj, Scope


class Cluster(Protocol):
    """Reads and writes of raw objects. The methods raise only subclasses of ClusterError."""

    async def fetch(self, kind: Kind, namespace: str, name: str) -> Obj | None:
        """Return the object as it is now, or None."""

    async def fetch_all(self, scope: Scope, label_selector: str | None = None) -> Listing:
        """Return all objects of a scope, with apiVersion and kind in each."""

    async def apply_new(self, obj: Obj) -> Obj:
        """Create by server-side apply. Raises ConflictError when an object of that name exists."""

    async def apply_owned(self, obj: Obj, uid: str, version: str | None = None) -> Obj:
        """Apply on the object of that uid, and of that resourceVersion if one is given.

        Raises ConflictError if the object has changed: a late write must not undo a newer one.
        """

    async def apply_status(self, obj: Obj) -> Obj:
        """Apply `status` at metadata.resourceVersion. Raises ConflictError if the object has changed.

        Raises AbsentError if the object is gone.
        """

    async def write_scale(self, service: Obj, replicas: int) -> None:
        """Set spec.replicas by the object's /scale, at its resourceVersion.

        Raises ConflictError if the object has changed, and AbsentError if it is gone.
        """

    async def annotate(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        uid: str,
        annotations: dict[str, str | None],
        *,
        version: str | None = None,
    ) -> Obj:
        """Set annotations of an object, at that resourceVersion if one is given. None removes an annotation.

        Raises ConflictError if the object has changed, and AbsentError if it is gone.
        """

    async def change_data(self, obj: Obj, data: dict[str, str | None]) -> Obj:
        """Set entries of an object's `data`, at its uid and resourceVersion. None removes an entry.

        Raises ConflictError if the object has changed, and AbsentError if it is gone.
        """

    async def delete(
        self, kind: Kind, namespace: str, name: str, uid: str, version: str | None = None
    ) -> None:
        """Delete the object of that uid, and of that resourceVersion if one is given.

        An object that is gone already is no error. Raises ConflictError if the object has changed.
        """

    async def create_event(self, event: Obj) -> Obj:
        """Create an Event, and return it with its name."""

    async def change_event(self, namespace: str, name: str, fields: Obj) -> None:
        """Change fields of an Event. Raises AbsentError if it is gone: an Event lasts for an hour."""

    async def create_lease(self, lease: Obj) -> Obj:
        """Create a Lease. Raises ConflictError when it exists."""

    async def replace_lease(self, lease: Obj) -> Obj:
        """Replace a Lease at its resourceVersion. Raises ConflictError if it has changed."""
