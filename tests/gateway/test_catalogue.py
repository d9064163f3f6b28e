import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from millrace_gateway.route.catalogue import Catalogue, Route
from millrace_gateway.route.objects import ServiceKey
from tests.gateway.conftest import make_pod, make_service


def make_catalogue(*services: dict[str, Any], **pins: ServiceKey) -> Catalogue:
    catalogue = Catalogue(lambda: 0.0, pins)
    catalogue.replace_services(services)
    return catalogue


def keys_of(route: Route | None) -> list[str]:
    return [str(service.key) for service in route.services] if route else []


def test_a_served_name_finds_its_service() -> None:
    catalogue = make_catalogue(make_service("a", "chat", served="llama"))
    assert keys_of(catalogue.find_model("llama")) == ["a/chat"]
    assert keys_of(catalogue.find_model("a/chat")) == ["a/chat"]
    assert catalogue.find_model("chat") is None
    assert catalogue.find_model("a/llama") is None
    assert catalogue.find_model("") is None


def test_a_name_that_two_namespaces_claim_leads_nowhere() -> None:
    old = make_service("b", "one", served="m", created="2026-01-01T00:00:00Z")
    new = make_service("a", "two", served="m", created="2026-01-02T00:00:00Z")
    catalogue = make_catalogue(new, old)
    assert catalogue.find_model("m") is None
    assert [keys_of(catalogue.find_model(name)) for name in ("b/one", "a/two")] == [["b/one"], ["a/two"]]
    assert list(catalogue.list_models()) == ["a/two", "b/one"]
    catalogue.delete_service(old)
    assert keys_of(catalogue.find_model("m")) == ["a/two"]
    assert list(catalogue.list_models()) == ["m"]


def test_a_pinned_name_leads_to_its_service_whoever_claims_it() -> None:
    pinned = make_service("a", "chat", served="llama")
    catalogue = make_catalogue(
        make_service("b", "chat"), make_service("c", "chat"), chat=ServiceKey("a", "chat")
    )
    assert catalogue.find_model("chat") is None
    assert catalogue.list_pinned() == {}
    catalogue.apply_service(pinned)
    assert keys_of(catalogue.find_model("chat")) == ["a/chat"]
    assert list(catalogue.list_pinned()) == ["chat"]
    assert list(catalogue.list_models()) == ["chat", "llama", "b/chat", "c/chat"]


def test_equal_served_names_merge_inside_a_namespace() -> None:
    catalogue = make_catalogue(
        make_service("a", "two", served="m", created="2026-01-03T00:00:00Z"),
        make_service("a", "one", served="m", created="2026-01-01T00:00:00Z"),
    )
    catalogue.replace_replicas([make_pod("a", "one", "p1"), make_pod("a", "two", "p2")])
    merged, single = catalogue.find_model("m"), catalogue.find_model("a/two")
    assert keys_of(merged) == ["a/one", "a/two"]
    assert [r.uid for r in catalogue.ready_replicas(merged)] == ["p1", "p2"]
    assert [r.uid for r in catalogue.ready_replicas(single)] == ["p2"]
    assert list(catalogue.list_models()) == ["m"]


def test_a_served_name_with_a_slash_can_be_asked_for() -> None:
    catalogue = make_catalogue(make_service("a", "chat", served="meta-llama/Llama-3.1-8B"))
    assert keys_of(catalogue.find_model("meta-llama/Llama-3.1-8B")) == ["a/chat"]


def test_a_served_name_spelt_like_anothers_address_captures_nothing() -> None:
    thief = make_service("evil", "x", served="team/chat", created="2020-01-01T00:00:00Z")
    victim, neighbour = make_service("team", "chat"), make_service("team", "other")
    catalogue = make_catalogue(thief, victim, neighbour)
    assert keys_of(catalogue.find_model("team/chat")) == ["team/chat"]
    for gone in (victim, neighbour):
        catalogue.delete_service(gone)
        assert catalogue.find_model("team/chat") is None


def test_a_service_may_serve_under_its_own_namespaces_prefix() -> None:
    catalogue = make_catalogue(make_service("team", "chat", served="team/v2"))
    assert keys_of(catalogue.find_model("team/v2")) == ["team/chat"]


def test_a_pods_life_moves_it_in_and_out_of_the_ready() -> None:
    catalogue = make_catalogue(make_service("a", "chat"))
    route = catalogue.find(ServiceKey("a", "chat"))
    assert catalogue.ready_replicas(route) == ()
    catalogue.apply_replica(make_pod("a", "chat", "p1", ready=False))
    assert catalogue.ready_replicas(route) == ()
    catalogue.apply_replica(make_pod("a", "chat", "p1"))
    assert [r.uid for r in catalogue.ready_replicas(route)] == ["p1"]
    leaving = make_pod("a", "chat", "p1")
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    catalogue.apply_replica(leaving)
    assert catalogue.ready_replicas(route) == ()
    catalogue.delete_replica(leaving)
    catalogue.delete_replica(leaving)
    catalogue.check_integrity()


def test_a_pod_relabelled_leaves_its_former_service() -> None:
    catalogue = make_catalogue(make_service("a", "one"), make_service("a", "two"))
    catalogue.apply_replica(make_pod("a", "one", "p1"))
    catalogue.apply_replica(make_pod("a", "two", "p1"))
    assert catalogue.ready_replicas(catalogue.find(ServiceKey("a", "one"))) == ()
    assert len(catalogue.ready_replicas(catalogue.find(ServiceKey("a", "two")))) == 1


def test_a_pod_in_another_namespace_serves_nothing_here() -> None:
    catalogue = make_catalogue(make_service("a", "chat"))
    catalogue.apply_replica(make_pod("evil", "chat", "p1"))
    assert catalogue.ready_replicas(catalogue.find(ServiceKey("a", "chat"))) == ()


NAMES = st.sampled_from(["x", "y"])
SERVICE_EVENTS = st.tuples(st.booleans(), NAMES, NAMES, st.sampled_from(["m", "n", "x/y"]), st.integers(1, 3))
POD_EVENTS = st.tuples(st.booleans(), NAMES, NAMES, st.integers(0, 3), st.booleans())


@given(st.lists(SERVICE_EVENTS), st.lists(POD_EVENTS))
def test_any_order_of_events_leads_where_a_fresh_list_does(
    services: list[tuple[bool, str, str, str, int]], pods: list[tuple[bool, str, str, int, bool]]
) -> None:
    catalogue, known, running = Catalogue(lambda: 0.0), {}, {}
    for is_there, namespace, name, served, day in services:
        item = make_service(namespace, name, served=served, created=f"2026-01-0{day}T00:00:00Z")
        known.pop((namespace, name), None)
        if is_there:
            known[namespace, name] = item
        (catalogue.apply_service if is_there else catalogue.delete_service)(item)
    for is_there, namespace, service, number, ready in pods:
        item = make_pod(namespace, service, f"p{number}", ready=ready)
        running.pop(number, None)
        if is_there:
            running[number] = item
        (catalogue.apply_replica if is_there else catalogue.delete_replica)(item)
    catalogue.check_integrity()
    fresh = make_catalogue(*known.values())
    fresh.replace_replicas(running.values())
    assert catalogue.list_models() == fresh.list_models()
    for name, route in fresh.list_models().items():
        assert set(catalogue.ready_replicas(route)) == set(fresh.ready_replicas(route))
        if "/" not in name:
            assert catalogue.find_model(name) == route
            assert len({service.key.namespace for service in route.services}) == 1
    for key in fresh.keys:
        assert keys_of(catalogue.find_model(str(key))) == [str(key)]


def test_a_replica_is_as_new_as_when_it_was_seen_to_become_ready() -> None:
    """By the gateway's clock: nodes have others. What the gateway finds at its start is not new."""
    now = [100.0]
    catalogue = Catalogue(lambda: now[0])
    catalogue.replace_services([make_service("a", "chat")])
    route = catalogue.find_model("chat")
    assert route is not None

    def ready_at() -> dict[str, float]:
        return {replica.uid: replica.ready_at for replica in catalogue.ready_replicas(route)}

    old, starting = make_pod("a", "chat", "old"), make_pod("a", "chat", "new", ready=False)
    catalogue.replace_replicas([old, starting])
    assert ready_at() == {"old": -math.inf}
    now[0] = 110.0
    catalogue.apply_replica(make_pod("a", "chat", "new"))
    now[0] = 120.0
    catalogue.apply_replica(make_pod("a", "chat", "new", address="127.9.8.251"))
    catalogue.apply_replica(old)
    catalogue.replace_replicas([old, make_pod("a", "chat", "new"), make_pod("a", "chat", "missed")])
    assert ready_at() == {"old": -math.inf, "new": 110.0, "missed": 120.0}
    now[0] = 130.0
    catalogue.apply_replica(starting)
    catalogue.apply_replica(make_pod("a", "chat", "new"))
    assert ready_at()["new"] == 130.0


def test_the_end_of_a_pods_object_is_told_and_its_deletion_timestamp_is_not() -> None:
    catalogue, gone = make_catalogue(make_service("a", "chat")), []
    catalogue.on_gone = gone.append
    pods = [make_pod("a", "chat", f"p{number}") for number in range(4)]
    catalogue.replace_replicas(pods)
    leaving = make_pod("a", "chat", "p0")
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    catalogue.apply_replica(leaving)
    unlabelled = make_pod("a", "chat", "p1")
    unlabelled["metadata"]["labels"] = {}
    catalogue.apply_replica(unlabelled)
    catalogue.replace_replicas([leaving, unlabelled, pods[2], pods[3]])
    assert gone == []
    catalogue.delete_replica(leaving)
    catalogue.delete_replica(leaving)
    assert gone == ["p0"]
    catalogue.replace_replicas([make_pod("b", "chat", "p9")], "b")
    assert gone == ["p0"]
    catalogue.replace_replicas([pods[3], unlabelled], "a")
    assert gone == ["p0", "p2"]
    catalogue.check_integrity()


def test_no_replica_that_stays_is_missing_while_a_list_is_taken_in_steps() -> None:
    catalogue = make_catalogue(make_service("a", "chat"))
    route = catalogue.find_model("chat")
    before, after = (
        [make_pod("a", "chat", f"p{number}") for number in numbers] for numbers in (range(6), range(3, 9))
    )
    catalogue.replace_replicas(before)
    for _ in catalogue.replacing_replicas(after, None):
        assert {"p3", "p4", "p5"} <= {replica.uid for replica in catalogue.ready_replicas(route)}
        catalogue.check_integrity()
    assert sorted(catalogue.list_ready()) == [f"p{number}" for number in range(3, 9)]


def test_routes_are_the_same_objects_until_a_service_changes() -> None:
    one, two = make_service("a", "one", served="m"), make_service("a", "two", served="m")
    catalogue = make_catalogue(one, two)
    shared, single = catalogue.find_model("m"), catalogue.find_model("a/one")
    catalogue.apply_replica(make_pod("a", "one", "p1", served="m"))
    catalogue.apply_service(one)
    assert catalogue.find_model("m") is shared is catalogue.renew(shared)
    assert catalogue.find_model("a/one") is single is catalogue.renew(single)
    assert catalogue.ready_replicas(single) is catalogue.ready_replicas(single)
    catalogue.apply_service(make_service("a", "one", served="other"))
    assert catalogue.find_model("m") != shared  # it has the new state of the first service
    catalogue.delete_replica(make_pod("a", "one", "p1"))
    assert catalogue.find_model("m") is catalogue.find_model("a/two")
    catalogue.check_integrity()
