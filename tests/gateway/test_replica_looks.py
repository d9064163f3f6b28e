"""What the turnstiles learn of a service's replicas: by a look at all, or by what has changed since."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from millrace_gateway.access.fairness.replica_room import PresentReplica
from millrace_gateway.access.fairness.window import Present, Window
from millrace_gateway.front.replica_looks import LOOK_SECONDS, ReplicaLooks
from millrace_gateway.route.balance import Balancer
from millrace_gateway.route.catalogue import Catalogue
from millrace_gateway.route.objects import Replica, ServiceChanges, ServiceKey
from testing.gateway_bench import make_pod

CHAT = ServiceKey("team", "chat")
UIDS = ("p", "q", "r")


class World:
    """A gateway's catalogue and balancer, and two windows: one looks at all each time."""

    def __init__(self) -> None:
        self.now = 100.0
        self.catalogue = Catalogue(lambda: self.now)
        self.balancer = Balancer(2.0)
        self.replica_looks = ReplicaLooks(self.catalogue, self.balancer, lambda: self.now)
        self.counts: Counter[str] = Counter()
        self.window, self.anew = Window(), Window()
        self.num_looks = 0
        self.catalogue.replace_replicas([make_pod("team", "chat", uid) for uid in UIDS])
        self.replicas = {one.uid: one for one in self.catalogue.list_replicas(CHAT)}

    def look(self) -> None:
        counts = self.replica_looks.find_counts(CHAT)
        if counts is None or not self.window.note_counts(counts, self.now):
            self.window.note_replicas(self.replica_looks.look(CHAT), self.now)
            self.num_looks += 1
        listed = self.catalogue.list_replicas(CHAT)
        shares = self.balancer.find_shares(listed, self.now)
        standings = {
            one.uid: PresentReplica(self.counts[one.uid], one.uid in shares, shares.get(one.uid, 1.0))
            for one in listed
        }
        num_gone = self.counts.total() - sum(one.num_here for one in standings.values())
        self.anew.note_replicas(Present(standings, num_gone), self.now)

    def change(self, uid: str, action: str) -> None:
        replica = self.replicas[uid]
        match action:
            case "begin":
                self.balancer.begin(replica, 3)
                self.counts[uid] += 3
            case "end" if self.counts[uid]:
                self.balancer.end(replica, 3)
                self.counts[uid] -= 3
            case "fail":
                self.balancer.note_failure(replica, self.now, is_refusal=True)
            case "answer":
                self.balancer.note_answer(replica, 200, self.now)
            case "go":
                self.catalogue.delete_replica(make_pod("team", "chat", uid))
            case "come":
                self.catalogue.apply_replica(make_pod("team", "chat", uid))
            case "wait":
                self.now += 2 * LOOK_SECONDS


ACTIONS = st.sampled_from(("begin", "begin", "end", "fail", "answer", "go", "come", "wait"))


@given(st.lists(st.tuples(st.sampled_from(UIDS), ACTIONS)))
def test_what_has_changed_tells_as_much_as_a_look_at_all(changes: list[tuple[str, str]]) -> None:
    world = World()
    for uid, action in changes:
        world.change(uid, action)
        world.look()
        for num_inside in (0, 9, 30):
            size = world.window.find_size(num_inside, world.now)
            assert size == world.anew.find_size(num_inside, world.now)


def test_requests_alone_need_no_look_at_all_until_some_time_has_passed() -> None:
    world = World()
    world.change("p", "begin")
    for uid in (*"pqrpqr", *"pqr"):
        world.change(uid, "begin")
        world.look()
    assert world.num_looks == 1
    for num_looks, action in enumerate(("wait", "fail", "go", "come"), 2):
        world.change("q", action)
        world.look()
        world.look()
        assert world.num_looks == num_looks
    elsewhere = Replica("x", ServiceKey("team", "other"), "x", "10.0.0.9", is_ready=True)
    world.balancer.note_failure(elsewhere, world.now, is_refusal=True)
    assert world.replica_looks.find_counts(CHAT) == {}  # another service's failures are nothing to this one
    world.replica_looks.forget_deleted(ServiceChanges(frozenset({CHAT}), frozenset({CHAT})))
    assert world.replica_looks.find_counts(CHAT) is None
