"""The health that Argo CD reads of a service in each state of a life, as the operator itself wrote it."""

import pytest

from tests.kubectl.lives.life import Life
from tests.kubectl.screens import SHOWN
from tests.operator.test_argocd_health import judge

HEALTHY = {
    "serves",
    "model_name_is_shadowed",
    "operator_is_gone",
    "signals_are_missing",
    "rests",
    "is_pinned",
    "pin_is_invalid",
    "pin_has_lapsed",
    "pin_is_not_for_this_mode",
    "only_shows_what_it_would_have",
}
"""Enough that a sync need not wait for anything."""
PROGRESSING = {
    "not_seen",
    "edit_not_seen",
    "waits_for_a_node",
    "pulls_an_image",
    "asks_for_its_model",
    "looks_at_its_model",
    "fetches",
    "fills_a_claim",
    "loads",
    "wakes",
    "wakes_without_room",
    "rolls_out",
    "old_replicas_make_room",
    "canary_serves",
    "canary_loads",
    "canary_was_promoted",
    "scales_up",
    "replica_leaves",
    "node_is_emptied",
    "node_is_emptied_and_no_other_has_room",
    "misses_an_objective",
}
SUSPENDED = {
    "at_zero",
    "canary_waits_for_promotion",
    "comes_back_after_an_abort",
    "order_is_unreadable",
}
"""They wait for a person."""


def expect(name: str) -> str:
    """The health of a state; of all that fails it is Degraded, also behind healthy replicas."""
    states = {"Healthy": HEALTHY, "Progressing": PROGRESSING, "Suspended": SUSPENDED}
    return next((health for health, names in states.items() if name in names), "Degraded")


@pytest.mark.parametrize("one", SHOWN, ids=lambda one: one.__name__)
async def test_health_is_that_of_the_state(one: Life) -> None:
    world = await one()
    health, message = judge(world.service)
    assert health == expect(one.__name__)
    if health == "Degraded":
        assert message == world.condition("Degraded")["message"]
    assert message


def test_every_named_state_is_there() -> None:
    assert {one.__name__ for one in SHOWN} >= HEALTHY | PROGRESSING | SUSPENDED
