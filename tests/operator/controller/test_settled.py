"""`kubectl wait --for=condition=Progressing=false` ends where what is asked runs, or was given up."""

from typing import Any

import pytest

from testing.world import World
from tests.operator.model.test_fill import CACHED, make_claim
from tests.operator.model.test_fit import make_world
from tests.operator.model.test_resolve import MAIN
from tests.operator.rollout.test_versions import Shop
from tests.operator.test_argocd_health import judge

SMALL = {"limits": {"memory": "8Gi"}}
SERVED = {"uri": "file:///models/stories"}


def check_goes_on(world: World, reason: str) -> None:
    """The edit is told as not applied in the words of `Degraded`, and nobody calls that progress."""
    found, degraded = world.condition("Progressing"), world.condition("Degraded")
    assert (found["status"], found["reason"]) == ("True", reason)
    assert found["observedGeneration"] == world.service["metadata"]["generation"]
    assert (degraded["status"], degraded["reason"]) == ("True", reason)
    assert found["message"] == degraded["message"]
    assert judge(world.service)[0] == "Degraded"


def check_settled(world: World) -> None:
    found = world.condition("Progressing")
    assert (found["status"], found["reason"]) == ("False", "Settled")
    assert judge(world.service)[0] == "Healthy"


async def test_an_unknown_version_is_not_settled_until_it_is_taken_back() -> None:
    shop = Shop(scaling={"mode": "External"}, replicas=1)
    await shop.settle()
    check_settled(shop)
    shop.edit(engine={"version": "0.3.0"})
    await shop.settle()
    check_goes_on(shop, "SettingsInvalid")
    shop.edit(replicas=2)
    await shop.settle()
    assert len(shop.pods()) == 2, "the count is obeyed"
    check_goes_on(shop, "SettingsInvalid")
    shop.edit(engine={})
    await shop.settle()
    check_settled(shop)


@pytest.mark.parametrize("first", [MAIN, SERVED], ids=["the first revision", "an edit"])
async def test_a_model_that_does_not_fit_is_not_settled_until_it_does(first: dict[str, Any]) -> None:
    world = make_world(model=first, resources=SMALL)
    await world.settle()
    if first is SERVED:
        check_settled(world)
        world.edit(model=MAIN)
        await world.settle()
    check_goes_on(world, "DoesNotFit")
    world.edit(resources={"limits": {"memory": "64Gi"}})
    await world.settle()
    check_settled(world)


@pytest.mark.parametrize("first", [CACHED, SERVED], ids=["the first revision", "an edit"])
async def test_a_claim_that_is_of_no_use_is_not_settled_until_it_is(first: dict[str, Any]) -> None:
    world = make_world(model=first, resources={"limits": {"memory": "64Gi"}})
    await world.settle()
    if first is SERVED:
        check_settled(world)
        world.edit(model=CACHED)
        await world.settle()
    check_goes_on(world, "CacheUnusable")
    world.cluster.put(make_claim("ReadWriteMany"))
    world.now += 60.0
    await world.settle()
    check_settled(world)
