"""Whether a service's model name leads to it, as its status tells, and who looks again when that changes."""

from typing import Any

import pytest

from millrace_kubernetes.model_names import ModelNames, Standing
from millrace_operator.controller.cache import Cache
from millrace_operator.controller.queue import WorkQueue
from millrace_operator.controller.watch_recorder import WatchRecorder
from millrace_operator.kube.kinds import INFERENCE_SERVICE, Obj, ObjectKey, ServiceKey
from testing.world import KEY, World, crash_status, make_service

RIVAL = ServiceKey("secret", "rival")


def make_rival(served: str = "chat", version: int = 1, **status: Any) -> Obj:
    metadata = {"namespace": RIVAL.namespace, "name": RIVAL.name, "uid": "r", "resourceVersion": str(version)}
    service = make_service(model={"uri": "file:///m", "servedName": served})
    return {**service, "metadata": {**service["metadata"], **metadata}, "status": status}


async def test_a_name_that_another_namespace_claims_is_told_without_a_word_of_that_one() -> None:
    world = World()
    await world.settle()
    assert (world.condition("AccessReady")["status"], world.condition("AccessReady")["reason"]) == (
        "True",
        "NameHeld",
    )
    world.cluster.put(make_rival())
    await world.settle()
    told = world.condition("AccessReady")
    assert (told["status"], told["reason"]) == ("False", "NameShadowed")
    [event] = [one for one in world.cluster.events if one["reason"] == "NameShadowed"]
    assert (event["type"], event["count"], event["message"]) == ("Warning", 1, told["message"])
    assert "gateway.shortNames" in told["message"]
    assert "servedName" not in told["message"], "that would break the clients as well"
    assert "shop/chat" in told["message"]
    assert "http://chat.shop.svc.cluster.local" in told["message"]
    assert "secret" not in told["message"]
    assert "rival" not in told["message"]
    assert world.condition("Ready")["status"] == "True"  # its own address answers as before
    del world.cluster.objects[ObjectKey(INFERENCE_SERVICE.kind, *RIVAL)]
    await world.settle()
    assert world.condition("AccessReady")["status"] == "True"


@pytest.mark.parametrize(
    ("served", "pins", "words"),
    [
        ("chat", {"chat": RIVAL}, "the platform gives it to another service"),
        ("team/chat", {}, "the address of a service in another namespace"),
        ("chat", {"chat": KEY}, None),
        ("team/chat", {"team/chat": KEY}, None),
    ],
)
async def test_what_the_platform_pins_holds(served: str, pins: dict[str, ServiceKey], words: str) -> None:
    world = World(model={"uri": "file:///m", "servedName": served})
    world.cache._names = ModelNames(pins)
    await world.settle()
    told = world.condition("AccessReady")
    assert told["status"] == ("True" if words is None else "False")
    assert (words or "clients write") in told["message"]


async def test_a_name_that_replicas_still_run_with_is_told_while_it_leads_here() -> None:
    world = World()
    await world.settle()
    world.edit(model={"uri": "file:///m", "servedName": "new"})
    await world.reconcile()
    world.broken[world.status["updateRevision"]] = crash_status()
    await world.settle()
    told = world.condition("AccessReady")
    assert (told["status"], '"model": "new"' in told["message"]) == ("True", True)
    assert 'still run with the name "chat", which leads here' in told["message"]
    world.cluster.put(make_rival("chat"))
    await world.settle()
    assert world.cache.standing(RIVAL) is Standing.SHARED
    assert '"chat"' not in world.condition("AccessReady")["message"]


async def test_a_name_that_no_replica_runs_with_any_more_is_no_claim() -> None:
    world = World()
    await world.settle()
    world.edit(model={"uri": "file:///m", "servedName": "new"})
    await world.settle()
    assert world.cache._running._counts == {KEY: {"new": 1}}
    assert "still run" not in world.condition("AccessReady")["message"]


def test_the_other_claimants_are_looked_at_when_a_claim_comes_or_goes() -> None:
    queue = WorkQueue()
    cache = Cache(ModelNames({}, queue.add))
    recorder = WatchRecorder(cache, queue)
    ours = make_service()
    cache.put({**ours, "metadata": {**ours["metadata"], "uid": "c", "resourceVersion": "1"}})
    looked_at = []
    for event, rival in (
        ("ADDED", make_rival()),
        ("MODIFIED", make_rival(version=2, url="http://x")),
        ("MODIFIED", make_rival("mine", 3)),
        ("MODIFIED", make_rival("chat", 4)),
        ("DELETED", make_rival("chat", 4)),
    ):
        with queue.opened():
            recorder.record_event(INFERENCE_SERVICE, event, rival)
            looked_at.append(len(queue) == 2)
    assert looked_at == [True, False, True, True, True]
