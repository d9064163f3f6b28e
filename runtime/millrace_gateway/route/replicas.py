"""The replicas of the cluster by service, as last seen. Pure. A change costs the same in a large cluster.

A replica is *gone* once its Pod object is deleted, or missing from a complete list. A deletionTimestamp only
announces that: the replica finishes its requests first.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from millrace_gateway.route.objects import Object, Replica, ServiceKey, read_replica


class _Group:
    """The Ready replicas of one service."""

    def __init__(self) -> None:
        self._ready: dict[str, Replica] = {}
        self._num_running: Counter[str] = Counter()
        """The number of replicas by the name that they run with."""
        self._listed: tuple[Replica, ...] | None = None

    def list_ready(self) -> tuple[Replica, ...]:
        """Return the replicas: the same tuple until one changes."""
        if self._listed is None:
            self._listed = tuple(self._ready.values())
        return self._listed

    def list_names(self) -> frozenset[str]:
        """Return the names that the replicas run with."""
        return frozenset(self._num_running)

    def put(self, uid: str, replica: Replica | None) -> bool:
        """Replace a replica; None: remove it. Return whether that begins or ends a name."""
        former = self._ready.get(uid)
        if replica is None:
            self._ready.pop(uid, None)
        else:
            self._ready[uid] = replica
        self._listed = None
        before = None if former is None else former.served_name
        now = None if replica is None else replica.served_name
        return before != now and self._count(now, 1) | self._count(before, -1)

    def _count(self, name: str | None, change: int) -> bool:
        """Count replicas of a name. Return whether they are the first, or were the last."""
        if name is None:
            return False
        self._num_running[name] += change
        if not self._num_running[name]:
            del self._num_running[name]
            return True
        return self._num_running[name] == change

    def __bool__(self) -> bool:
        return bool(self._ready)


class Replicas:
    """Owner of the replicas. `clock` returns the seconds of a monotonic clock.

    `on_names` gets the names that a service's Ready replicas run with, whenever they change. `on_gone` gets
    the uid of each replica that is gone.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        on_names: Callable[[ServiceKey, frozenset[str]], None],
    ) -> None:
        self.num_changes = 0
        """Changes of any replica since the start."""
        self.on_gone: Callable[[str], None] = lambda _uid: None
        self.leaving: set[str] = set()
        """The uids of those that are marked to leave."""
        self._clock = clock
        self._on_names = on_names
        self._listed: set[str | None] = set()
        """The namespaces whose replicas have been listed; None: all."""
        self._replicas: dict[str, Replica] = {}
        self._groups: dict[ServiceKey, _Group] = {}

    def apply(self, pod: Object) -> ServiceKey | None:
        """Add or replace one replica. Return its service; None if the pod is no replica."""
        replica, uid = read_replica(pod), pod["metadata"]["uid"]
        if replica is None:
            self._remove(uid)
            return None
        former = self._replicas.get(uid)
        replica = self._note_ready(replica, former)
        if replica == former:
            return replica.key
        if former is not None and former.key != replica.key:
            self._remove(uid)
        self.num_changes += 1
        self._replicas[uid] = replica
        (self.leaving.add if replica.is_leaving else self.leaving.discard)(uid)
        self._index(replica.key, uid, replica if replica.is_ready else None)
        return replica.key

    def delete(self, pod: Object) -> None:
        """Remove one replica, if it is there: it is gone."""
        uid = pod["metadata"]["uid"]
        if self._remove(uid):
            self.on_gone(uid)

    def replace(self, pods: Iterable[Object], namespace: str | None) -> Iterator[None]:
        """Replace all replicas of a namespace, None: of all, with this complete list, in short steps.

        No replica that is in the old and the new list is missing between two steps.
        """
        listed: set[str] = set()
        for pod in pods:
            listed.add(pod["metadata"]["uid"])
            self.apply(pod)
            yield
        former = [
            uid
            for uid, replica in self._replicas.items()
            if uid not in listed and namespace in (None, replica.key.namespace)
        ]
        for uid in former:
            self._remove(uid)
            self.on_gone(uid)
            yield
        self._listed.add(namespace)
        self.num_changes += 1

    def list_ready(self, key: ServiceKey) -> tuple[Replica, ...]:
        """Return the Ready replicas of a service."""
        group = self._groups.get(key)
        return () if group is None else group.list_ready()

    def list_all_ready(self) -> list[str]:
        """Return the uids of all Ready replicas."""
        return [replica.uid for group in self._groups.values() for replica in group.list_ready()]

    def _remove(self, uid: str) -> bool:
        """Forget a replica. Return whether it was there."""
        former = self._replicas.pop(uid, None)
        if former is None:
            return False
        self.num_changes += 1
        self.leaving.discard(uid)
        self._index(former.key, uid, None)
        return True

    def _index(self, key: ServiceKey, uid: str, replica: Replica | None) -> None:
        """Bring a service's group up to date with a replica; None: it is not Ready."""
        group = self._groups.get(key) or self._groups.setdefault(key, _Group())
        has_other_names = group.put(uid, replica)
        if not group:
            del self._groups[key]
        if has_other_names:
            self._on_names(key, group.list_names())

    def _note_ready(self, replica: Replica, former: Replica | None) -> Replica:
        """Return the replica with the time at which it became Ready; replicas of the first list have none."""
        if former is not None and former.is_ready:
            return replace(replica, ready_at=former.ready_at)
        is_new = not self._listed.isdisjoint((None, replica.key.namespace))
        return replace(replica, ready_at=self._clock()) if is_new else replica

    def check_integrity(self) -> None:
        """Assert that every index agrees with the replicas."""
        ready = {uid: replica for uid, replica in self._replicas.items() if replica.is_ready}
        assert sorted(self.list_all_ready()) == sorted(ready)
        assert self.leaving == {uid for uid, replica in self._replicas.items() if replica.is_leaving}
        for key, group in self._groups.items():
            assert group
            assert all(ready[replica.uid] is replica and replica.key == key for replica in group.list_ready())
            names = {replica.served_name for replica in group.list_ready()} - {None}
            assert group.list_names() == names
