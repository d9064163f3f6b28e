"""The cluster's nodes in virtual time: a pod goes where there is room, or waits for a node or for room."""

from dataclasses import dataclass

IDLE_SECONDS = 600.0
"""How long a node stays without pods: the Cluster Autoscaler's default (`--scale-down-unneeded-time`)."""


@dataclass(slots=True, eq=False)
class Node:
    """A machine that pods share."""

    ready_at: float
    num_pods: int = 0
    emptied_at: float = 0.0


class Nodes:
    """Owner of the nodes and of the room for pods."""

    def __init__(self, seconds: float, pods_per_node: int, capacity: int | None) -> None:
        self._seconds = seconds
        self._pods_per_node = pods_per_node
        self._capacity = capacity
        self._nodes: list[Node] = []
        self.num_pods = 0
        """Those that have a place, running or starting."""

    def place(self, now: float, *, is_ready: bool = False) -> Node | None:
        """Return the node of a new pod, None where the cluster is full.

        A node that is missing is ready after its time, or at once where `is_ready`.
        """
        if self._capacity is not None and self.num_pods >= self._capacity:
            return None
        self._nodes = [node for node in self._nodes if node.num_pods or now - node.emptied_at < IDLE_SECONDS]
        node = next((node for node in self._nodes if node.num_pods < self._pods_per_node), None)
        if node is None:
            node = Node(now if is_ready else now + self._seconds)
            self._nodes.append(node)
        node.num_pods += 1
        self.num_pods += 1
        return node

    def leave(self, node: Node, now: float) -> None:
        """Free a pod's place."""
        node.num_pods -= 1
        node.emptied_at = now
        self.num_pods -= 1
