"""A service whose clients need keys: its replicas, its revisions, and what its status says."""

import argparse
from typing import Any

import pytest

from millrace_operator.api.access_types import Access, DefaultAccess, parse_default_access
from millrace_operator.gateways.signing_keys import list_named_keys
from millrace_operator.observed.snapshot import GatewayKey
from millrace_operator.render.settings import RenderSettings
from millrace_runtime.replica.gateway_flags import add_gateway_flags
from testing.world import World

KEYS = {"authentication": {"mode": "APIKey", "secretName": "chat-keys"}}
PLATFORMS = {"authentication": {"mode": "APIKey", "secretName": "clients"}}
KEY = "-" + 42 * "A"
OPEN = {"authentication": {"mode": "None"}}


class Shop(World):
    """One service below a platform's defaults."""

    def __init__(
        self, access: dict[str, Any] | None, default: dict[str, Any] | None = None, *readable: str
    ) -> None:
        chart = DefaultAccess(
            access=Access.model_validate(default or {}), secret_namespaces=frozenset(readable)
        )
        self.settings = RenderSettings(access=chart)
        super().__init__(**({} if access is None else {"access": access}))
        self.gateway_key = GatewayKey(KEY)


def list_keys(world: World) -> set[str]:
    return set(list_named_keys(world.objects("Deployment")))


@pytest.mark.parametrize(
    ("access", "default", "keys"),
    [
        (None, None, set()),
        (KEYS, None, {KEY}),
        (None, PLATFORMS, {KEY}),
        ({"rateLimits": []}, PLATFORMS, {KEY}),
        (OPEN, PLATFORMS, set()),
        (OPEN, None, set()),
    ],
)
async def test_replicas_know_gateways_where_clients_need_keys(
    access: dict[str, Any] | None, default: dict[str, Any] | None, keys: set[str]
) -> None:
    world = Shop(access, default)
    await world.settle()
    assert list_keys(world) == keys
    (deployment,) = world.objects("Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    parser = argparse.ArgumentParser()
    add_gateway_flags(parser)
    flags, _ = parser.parse_known_args(container["args"])
    assert flags.gateway_keys == sorted(keys), "also where a key begins as a flag does"
    assert flags.service == ("shop/chat" if keys else None)


async def test_the_mode_makes_a_revision_and_nothing_else_of_access_does() -> None:
    world = Shop(None)
    await world.settle()
    first = world.status["updateRevision"]
    world.edit(access=OPEN | {"rateLimits": [{"per": "Service", "concurrency": 2}]})
    await world.settle()
    assert world.status["updateRevision"] == first
    world.edit(access=KEYS)
    await world.settle()
    closed = world.status["updateRevision"]
    assert closed != first
    world.gateway_key = GatewayKey("B" * 43)
    world.edit(access={"authentication": {"mode": "APIKey"}, "rateLimits": []})
    await world.settle()
    assert world.status["updateRevision"] == closed
    assert list_keys(world) == {KEY}, "a newer key restarts nothing"
    world.edit(access={})
    await world.settle()
    assert world.status["updateRevision"] == first, "it goes back to the revision that it had"


async def test_a_changed_default_is_an_edit_and_an_upgrade_is_none() -> None:
    world = Shop(None)
    await world.settle()
    before = world.status["updateRevision"]
    world.settings = RenderSettings(access=DefaultAccess(access=Access.model_validate(PLATFORMS)))
    world.restart_operator()
    await world.settle()
    assert world.status["updateRevision"] != before
    assert list_keys(world) == {KEY}


async def test_without_a_key_of_the_gateways_no_replica_is_made_and_the_old_ones_stay() -> None:
    world = Shop(None)
    await world.settle()
    world.gateway_key = GatewayKey(None, "secrets is forbidden")
    world.edit(access=KEYS)
    await world.settle()
    degraded = world.condition("Degraded")
    assert (degraded["status"], degraded["reason"]) == ("True", "SettingsInvalid")
    assert "millrace-gateway-key" in degraded["message"]
    assert degraded["message"].endswith("secrets is forbidden")
    assert world.condition("Ready")["status"] == "True"
    world.gateway_key = GatewayKey(KEY)
    await world.settle()
    assert world.condition("Degraded")["status"] == "False"
    new = Shop(KEYS)
    new.gateway_key = GatewayKey(None, "secrets is forbidden")
    await new.settle()
    assert new.objects("Deployment") == []
    assert new.condition("Ready")["reason"] == "SettingsInvalid"


@pytest.mark.parametrize(
    ("access", "default", "readable", "reason", "words"),
    [
        (None, None, (), "NameHeld", 'clients write "model"'),
        (OPEN, PLATFORMS, (), "NameHeld", 'clients write "model"'),
        (KEYS, None, ("shop",), "KeysReadable", "shows a key of Secret chat-keys"),
        (None, PLATFORMS, (), "KeysReadable", "shows a key of the platform's Secret"),
        (
            KEYS,
            None,
            ("search",),
            "SecretNamespaceNotReadable",
            "add shop to the chart's gateway.secretNamespaces.",
        ),
        (
            KEYS,
            PLATFORMS,
            (),
            "SecretNamespaceNotReadable",
            "leave spec.access.authentication.secretName out",
        ),
        ({"authentication": {"mode": "APIKey"}}, None, ("shop",), "SecretNameMissing", "secretName, or have"),
    ],
)
async def test_the_condition_says_whether_the_gateway_may_read_keys(
    access: dict[str, Any], default: dict[str, Any], readable: tuple[str, ...], reason: str, words: str
) -> None:
    world = Shop(access, default, *readable)
    await world.settle()
    told = world.condition("AccessReady")
    assert (told["reason"], told["status"]) == (reason, str(reason in ("NameHeld", "KeysReadable")))
    assert words in told["message"]
    assert world.condition("Ready")["status"] == "True"
    warned = [event["reason"] for event in world.cluster.events if event["type"] == "Warning"]
    assert warned == ([] if told["status"] == "True" else [reason])


@pytest.mark.parametrize("text", ["", "[]", '{"authentication": {"mode": "Key"}}', '{"rateLimits": [{}]}'])
def test_a_default_that_is_none_is_refused_with_what_to_write(text: str) -> None:
    with pytest.raises(ValueError, match=r"write JSON of the form of spec\.access"):
        parse_default_access(text)
