"""`kubectl millrace models`, on the objects that the operator itself has written."""

import json
from collections.abc import Sequence
from typing import Any

from millrace_kubectl.kubectl import Obj
from millrace_kubectl.subcommands.models import NOTHING, render_models
from millrace_runtime import contract
from testing.world import World
from tests.kubectl.conftest import Terminal
from tests.operator.model.test_fill import CACHED, FOLDER, make_filling
from tests.operator.model.test_kept_model import make_kept_world
from tests.operator.model.test_resolve import EXTERNAL, FIRST, MAIN, SECOND


async def make_served(**spec: Any) -> World:
    world = World(**{"scaling": EXTERNAL, "replicas": 2, **spec})
    world.model_revision = FIRST
    await world.settle()
    return world


def show(*worlds: World, nodes: Sequence[Obj] | None = None, has_namespaces: bool = False) -> list[str]:
    services = [world.service for world in worlds]
    revisions = [one for world in worlds for one in world.objects("ControllerRevision")]
    return render_models(services, revisions, nodes, has_namespaces=has_namespaces).splitlines()


async def test_a_model_in_a_claim_is_shown_with_its_folder_and_its_users() -> None:
    world = await make_filling()
    assert show(world) == [NOTHING], "it is not there yet"
    world.is_filled = True
    await world.settle()
    titles, row = show(world)
    assert titles.split() == ["MODEL", "REVISION", "SIZE", "KEPT", "USED", "BY"]
    assert row.split("  ") == [
        "hf://acme/chat@main",
        FIRST[:12],
        "17.2 GB",
        f"claim models, {FOLDER}",
        "chat",
    ]


async def test_a_model_on_nodes_is_shown_with_the_nodes_that_have_all_of_it() -> None:
    world = make_kept_world()
    await world.settle()
    kept = contract.name_kept("shop", FOLDER)
    nodes: list[Obj] = [
        {"metadata": {"name": f"gpu-{index}", "labels": {f"{contract.LABEL_KEPT_ON_NODE}{kept}": "17"}}}
        for index in range(5)
    ]
    assert "  on nodes  chat" in show(world)[1], "whoever may not list nodes sees no names"
    assert "  on nodes: none now  " in show(world, nodes=[{"metadata": {"name": "cpu-0"}}])[1]
    assert "  on nodes: gpu-0, gpu-1  " in show(world, nodes=nodes[:2])[1]
    assert "  on nodes: gpu-0, gpu-1, gpu-2 and 2 more  " in show(world, nodes=nodes)[1]


async def test_an_earlier_model_stays_in_the_claim_and_is_nobodys_now() -> None:
    world = await make_filling()
    world.is_filled = True
    await world.settle()
    world.model_revision = SECOND
    world.edit(model={**CACHED, "uri": "hf://acme/chat@v2"})
    await world.settle()
    rows = [row for row in show(world) if "hf://" in row]
    assert [row.rpartition("  ")[2] for row in rows] == ["(earlier: chat)", "chat"]


async def test_what_each_pod_fetches_is_shown_while_it_is_used() -> None:
    world = await make_served(model=MAIN)
    assert "by each pod" in show(world)[1]
    world.edit(model={"uri": "pvc://weights/chat"})
    await world.settle()
    assert [row.split()[0] for row in show(world)[1:]] == ["pvc://weights/chat"]
    assert "claim weights, chat" in show(world)[1]
    world.edit(model={"uri": "file:///models/stories"})
    await world.settle()
    assert "in the image" in show(world)[1]


async def test_all_namespaces_have_a_column() -> None:
    world = await make_served(model=MAIN)
    titles, row = show(world, has_namespaces=True)
    assert (titles.split()[0], row.split()[0]) == ("NAMESPACE", "shop")


async def test_what_somebody_else_wrote_is_no_model() -> None:
    world = await make_served(model=MAIN)
    stray = {"metadata": {"namespace": "shop", "name": "x", "labels": {"millrace.dev/service": "gone"}}}
    services = [{**world.service, "status": None}]
    strays = [stray, {**stray, "data": {"inputs": 3}}]
    assert render_models(services, strays, None, has_namespaces=False) == NOTHING


def test_it_asks_for_both_kinds_in_the_namespaces_that_are_meant(terminal: Terminal) -> None:
    answer = terminal.run("models", "-A")
    assert (answer.status, answer.out) == (0, f"{NOTHING}\n")
    calls = [json.loads(line) for line in (terminal.folder / "calls").read_text().splitlines()]
    assert all("--all-namespaces" in call for call in calls)
    assert calls[1][1:3] == ["controllerrevisions.v1.apps", "--selector=millrace.dev/service"]
