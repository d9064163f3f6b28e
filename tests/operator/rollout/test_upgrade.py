"""What an earlier operator left goes on under this one as it is, however this one renders a pod."""

import json
from typing import Any

import pytest

from millrace_operator.kube.kinds import Obj
from millrace_operator.render.settings import RenderSettings
from testing.world import World
from tests.operator.controller.golden import TEMPLATES, children_of, read_left, render_templates

LEFT = read_left()
FROZEN = ("ControllerRevision", "Deployment")


class Upgraded(World):
    """The world of a service that an earlier operator made, under the present one with a newer image."""

    settings = RenderSettings(runtime_image="registry.example.com/runtime:newer")

    def __init__(self, left: dict[str, Any]) -> None:
        super().__init__()
        for obj in (left["service"], *left["children"]):
            self.cluster.put(obj)
        self.run_controllers()
        self.run_controllers()

    def frozen(self) -> list[Obj]:
        """What says which pods there are: the revisions and their Deployments."""
        return [_without_version(obj) for obj in children_of(self) if obj["kind"] in FROZEN]

    def writes_of_pods(self) -> list[tuple[str, str, str]]:
        return [write for write in self.cluster.writes if write[1] in FROZEN]


def _without_version(obj: Obj) -> Obj:
    metadata = {name: value for name, value in obj["metadata"].items() if name != "resourceVersion"}
    return {**obj, "metadata": metadata}


@pytest.mark.parametrize("name", LEFT)
async def test_an_upgrade_finds_every_revision_and_restarts_no_pod(name: str) -> None:
    world = Upgraded(LEFT[name])
    revision, left = world.status["currentRevision"], world.frozen()
    pods = [pod["metadata"]["uid"] for pod in world.pods()]
    await world.settle()
    assert world.writes_of_pods() == []
    assert world.frozen() == left
    assert [pod["metadata"]["uid"] for pod in world.pods()] == pods
    assert (world.status["currentRevision"], world.status["updateRevision"]) == (revision, revision)
    assert "rollout" not in world.status


@pytest.mark.parametrize("name", LEFT)
async def test_another_deadline_restarts_no_pod_of_an_earlier_operator(name: str) -> None:
    world = Upgraded(LEFT[name])
    left = world.frozen()
    world.edit(rollout={"progressDeadline": "5h"})
    await world.settle()
    assert (world.writes_of_pods(), world.frozen()) == ([], left)


async def test_a_changed_spec_gets_the_present_image_beside_what_was_left() -> None:
    """The proof that the world above would show a changed pod."""
    world = Upgraded(LEFT["0.1.0 minimal"])
    world.edit(engine={"maxSequences": 4})
    await world.settle()
    (deployment,) = world.objects("Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "registry.example.com/runtime:newer"
    assert len(world.objects("ControllerRevision")) == 2


async def test_an_edited_objective_restarts_no_pod_and_reaches_the_next_revision() -> None:
    def read_target() -> list[str]:
        deployment = max(world.objects("Deployment"), key=lambda one: one["spec"]["replicas"])
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        return [text for text in container["args"] if text.startswith("0.")]

    def write_target(target: str) -> dict[str, Any]:
        return {"objectives": [{"metric": "TimePerOutputToken", "percentile": 95, "target": target}]}

    world = World(scaling=write_target("50ms"))
    await world.settle()
    first, pods = world.status["currentRevision"], [pod["metadata"]["uid"] for pod in world.pods()]
    world.edit(scaling=write_target("80ms"))
    await world.settle()
    assert (world.status["currentRevision"], read_target()) == (first, ["0.05"])
    assert [pod["metadata"]["uid"] for pod in world.pods()] == pods
    world.edit(engine={"maxSequences": 4})
    await world.settle()
    assert (world.status["currentRevision"] != first, read_target()) == (True, ["0.08"])


async def test_what_is_rendered_is_what_reviewers_saw() -> None:
    """New revisions alone get what differs; `python -m tests.operator.controller.golden` writes it anew."""
    assert await render_templates() == json.loads(TEMPLATES.read_text())
