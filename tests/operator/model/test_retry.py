"""A source is asked again that told of a model which no replica serves, or nothing that can be read."""

import json
from dataclasses import replace
from typing import Any

import pytest

from millrace_fetch.plan.uri import parse_uri
from millrace_operator.api.annotations import REFRESH_ANNOTATION
from millrace_operator.api.model_uri import is_pinned
from millrace_operator.kube.kinds import POD
from testing.world import KEY, World
from tests.operator.model.test_fit import FACTS, make_world
from tests.operator.model.test_resolve import EXTERNAL, FIRST, MAIN, SECOND

FAULT = "there are no *.safetensors, and replicas read no other weights. There are GGUF (m.gguf)"
OTHER = replace(FACTS, fault=f"{FAULT}. Convert the model first")
PINNED = {"uri": f"hf://acme/chat@{FIRST}"}


async def pass_time(world: World, seconds: float) -> list[float]:
    """Look whenever the operator wants to; return after how many seconds each new Job was there."""
    began, seen, times = world.now, {job["metadata"]["uid"] for job in world.objects("Job")}, []
    while world.now < began + seconds:
        look = (await world.reconcile()).look_again
        world.now = min(began + seconds, world.now + (seconds if look is None else look))
        await world.settle()
        new = {job["metadata"]["uid"] for job in world.objects("Job")} - seen
        times += [world.now - began for _ in new]
        seen |= new
    return times


def mend(world: World) -> None:
    """Have the source have weights that replicas read."""
    world.model_facts = json.loads(FACTS.to_json())
    world.model_revision = SECOND


def told(world: World) -> tuple[str, str]:
    condition = world.condition("ModelReady")
    return condition["reason"], condition["message"]


@pytest.mark.parametrize("model", [MAIN, {"uri": "s3://models/chat"}])
async def test_a_model_that_is_converted_later_is_served_without_anybodys_doing(
    model: dict[str, Any],
) -> None:
    world = make_world(OTHER, model=model)
    await world.settle()
    assert told(world)[0] == "ModelInvalid"
    assert "its source is asked again" in told(world)[1]
    mend(world)
    await pass_time(world, 90)
    assert told(world)[0] == "Loaded"
    assert world.status["model"]["resolvedRevision"] == SECOND
    assert not world.objects("Job")


async def test_the_pauses_grow_and_what_was_told_stays_told_meanwhile() -> None:
    world = make_world(OTHER)
    await world.settle()
    conditions = world.status["conditions"]
    times = await pass_time(world, 4 * 3600)
    gaps = [int(after - before) for before, after in zip([0.0, *times], times, strict=False)]
    assert [round(gap / 60) for gap in gaps[:5]] == [1, 1, 2, 4, 8]
    assert set(gaps[7:]) <= set(range(3600, 3661))
    assert world.status["conditions"] == conditions, "no word changes while the answers are the same"
    assert len(world.objects("Job")) == 1, "the one that told it last"
    mend(world)
    await pass_time(world, 3700)
    assert told(world)[0] == "Loaded"


async def test_another_leader_keeps_the_pauses() -> None:
    world = make_world(OTHER)
    await world.settle()
    await pass_time(world, 3 * 3600)
    world.restart_operator()
    assert len(await pass_time(world, 3000)) <= 1


async def test_an_architecture_that_is_replaced_is_asked_for_too() -> None:
    world = make_world(replace(FACTS, fault="config.json names GemmaForCausalLM, which no replica serves"))
    await world.settle()
    mend(world)
    await pass_time(world, 90)
    assert told(world)[0] == "Loaded"


async def test_a_model_that_is_too_large_is_asked_for_again_and_at_once_by_a_refresh() -> None:
    world = make_world(resources={"limits": {"memory": "8Gi"}})
    await world.settle()
    assert told(world)[0] == "DoesNotFit"
    assert "asked again, ever more slowly and in the end once an hour" in told(world)[1]
    assert told(world)[1].endswith("and at once by kubectl millrace refresh chat -n shop")
    times = await pass_time(world, 3600)
    assert 3 < len(times) < 8
    mend(world)
    world.model_facts = None
    world.annotate(REFRESH_ANNOTATION, f"{world.status['updateRevision']} at 1")
    await world.settle()
    assert (told(world)[0], world.status["model"]["resolvedRevision"]) == ("Loaded", SECOND)


async def test_a_model_in_a_claim_that_was_refused_is_looked_at_again_by_each_refresh() -> None:
    world = World(model={"uri": "pvc://models/chat"}, scaling=EXTERNAL, replicas=2)
    world.put_claim("models")
    world.model_facts = json.loads(OTHER.to_json())
    await world.settle()
    assert told(world)[1].endswith(
        "once another model is in the claim, write kubectl millrace refresh chat -n shop"
    )
    assert await pass_time(world, 7200) == [], "a pod that looks holds the claim"
    for at in "12":
        before = len(world.cluster.writes)
        world.annotate(REFRESH_ANNOTATION, f"{world.status['updateRevision']} at {at}")
        await world.settle()
        assert ("create", "Job") in {write[:2] for write in world.cluster.writes[before:]}
        assert (told(world)[0], world.objects("Deployment"), world.objects("Pod")) == ("ModelInvalid", [], [])
        assert len(world.objects("ControllerRevision")) == 1
    mend(world)
    world.annotate(REFRESH_ANNOTATION, f"{world.status['updateRevision']} at 3")
    await world.settle()
    assert (told(world)[0], len(world.pods())) == ("Loaded", 2)
    (pods, records) = world.pods(), world.objects("ControllerRevision")
    world.annotate(REFRESH_ANNOTATION, f"{world.status['updateRevision']} at 4")
    await world.settle()
    world.annotate(REFRESH_ANNOTATION, None)
    world.restart_operator()
    await world.settle()
    assert (world.pods(), world.objects("ControllerRevision")) == (pods, records), "it serves"


async def test_a_model_that_is_pinned_by_its_content_is_refused_for_good_and_says_so() -> None:
    world = make_world(OTHER, model=PINNED)
    await world.settle()
    assert told(world)[0] == "ModelInvalid"
    assert f"{PINNED['uri']} never has another content" in told(world)[1]
    assert await pass_time(world, 2 * 86400) == []


async def test_a_source_that_is_away_takes_nothing_back_that_it_told() -> None:
    world = make_world(OTHER)
    await world.settle()
    before = told(world)
    world.model_revision = None
    await pass_time(world, 1800)
    assert told(world) == before
    assert len(world.objects("Job")) == 1, "it waits for the source, and the record has what was told"
    mend(world)
    await world.settle()
    assert told(world)[0] == "Loaded"


async def test_a_job_that_asks_again_and_loses_its_pod_is_made_anew() -> None:
    world = make_world(OTHER)
    await world.settle()
    mend(world)
    world.now += 61
    await world.reconcile_until_quiet()
    world.run_controllers()
    (pod,) = world.objects("Pod")
    world.cluster.remove(POD, KEY.namespace, pod["metadata"]["name"])
    await pass_time(world, 180)
    assert told(world)[0] == "Loaded"


@pytest.mark.parametrize("words", ['{"revision": "tor', "", "$(rm -rf /)"])
async def test_an_answer_that_cannot_be_read_is_told_and_asked_for_again_ever_more_slowly(
    words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world()
    monkeypatch.setattr(world, "_answer", lambda: words)
    await world.settle()
    times = await pass_time(world, 3500)
    gaps = [round((after - before) / 60) for before, after in zip([0.0, *times], times, strict=False)]
    assert gaps[:5] == [1, 1, 2, 4, 8]
    assert world.condition("Degraded")["status"] == "True"
    reason, message = told(world)
    assert reason == "FetchFailed"
    assert "can't be read" in message
    assert words in message
    monkeypatch.undo()
    await pass_time(world, 3700)
    assert told(world)[0] == "Loaded"


@pytest.mark.parametrize(
    "uri",
    [
        "hf://acme/chat",
        "hf://acme/chat@main",
        f"hf://acme/chat@{FIRST}",
        f"hf://acme/chat@{FIRST[:12]}",
        "s3://models/chat",
        "https://models.example/chat",
        "oci://registry.example/acme/chat:v1",
        f"oci://registry.example/acme/chat:{'a' * 64}",
        f"oci://registry.example/acme/chat@sha256:{'a' * 64}",
        f"https://models.example/chat@sha256:{'a' * 64}",
    ],
)
def test_what_is_pinned_is_what_the_fetching_takes_for_pinned(uri: str) -> None:
    assert is_pinned(uri) == (parse_uri(uri).pinned is not None)
