"""What status says to somebody whose first service does not work: the cause, and what to write."""

import json
from typing import Any

import pytest
import yaml

from millrace_fit.facts import find_facts
from millrace_operator.api.annotations import ROLLOUT_ANNOTATION, Action, Order
from millrace_operator.api.conditions import render_time
from millrace_operator.api.types import Status
from millrace_operator.observed.pods import read_pod
from millrace_operator.observed.snapshot import Advice, Demand
from millrace_operator.render.settings import RenderSettings
from millrace_operator.status.rollout_conditions import count_replicas
from millrace_runtime import contract
from testing.checkpoints.models import LLAMA_8B, stored_of
from testing.world import World, crash_status, make_pod, unschedulable_status
from tests.operator.autoscaler.replicas import H100

EXTERNAL = {"mode": "External", "minReplicas": 1, "maxReplicas": 1}
NO_CLAIM = (
    '0/3 nodes are available: persistentvolumeclaim "weights" not found. preemption: 0/3 nodes are '
    "available: 3 Preemption is not helpful for scheduling."
)


async def new_with_pods(status: dict[str, Any], **spec: Any) -> World:
    """A new service whose first pod gets this far, and no further."""
    world = World(scaling=EXTERNAL, replicas=1, **spec)
    await world.reconcile()
    world.broken[world.status["updateRevision"]] = status
    await world.settle()
    return world


async def test_a_claim_that_is_not_there_is_named_at_once_and_no_node_would_help() -> None:
    world = await new_with_pods(unschedulable_status(NO_CLAIM))
    degraded = world.condition("Degraded")
    assert (degraded["status"], degraded["reason"]) == ("True", "ClaimMissing")
    assert degraded["message"].endswith(
        "there is no PersistentVolumeClaim weights in this namespace: create it, or correct the claim's name "
        "in spec.model.uri"
    )
    assert world.condition("Ready")["reason"] == "ClaimMissing"


def test_a_pod_without_its_claim_waits_for_no_room() -> None:
    """Or a rollout would let an old replica go for it, and the autoscaler would take the cluster for full."""
    pod = read_pod(make_pod(**unschedulable_status(NO_CLAIM)))
    assert (pod.unplaced, pod.unplaced_since) == (None, None)


def test_heads_that_the_gpus_do_not_divide_are_the_settings_fault() -> None:
    line = "24 heads over 2 KV heads can't be shared by 5 workers: take 1, 2, 4, 6, 8 or 12"
    cause = read_pod(make_pod(**crash_status(line, contract.EXIT_BAD_MODEL))).cause
    assert cause is not None
    assert cause.reason == "SettingsInvalid"
    assert cause.message.endswith(
        f"{line} (nvidia.com/gpu under spec.resources.limits, or spec.parallelism.tensor)"
    )


async def test_a_gpu_that_does_not_work_is_the_devices_fault() -> None:
    said = "torch finds no GPU that works (no CUDA-capable device is detected)"
    line = f"millrace: --device cuda: {said}: give the replica one, or serve on CPUs with --device cpu"
    world = await new_with_pods(crash_status(line, contract.EXIT_BAD_MODEL))
    degraded = world.condition("Degraded")
    assert (degraded["status"], degraded["reason"]) == ("True", "DeviceUnusable")
    assert degraded["message"].endswith(
        f": {said}: check the driver of its node, or remove nvidia.com/gpu from spec.resources.limits to "
        "serve on CPUs"
    )


SHORT_OF_GPUS = "0/2 nodes are available: 2 Insufficient nvidia.com/gpu."


@pytest.mark.parametrize(
    ("num_gpus", "nodes", "told"),
    [
        (64, [8, 4], "no node has 64 nvidia.com/gpu; the largest has 8: lower spec.resources.limits, or add"),
        (8, [8, 4], None),
        (64, [8, 0], None),
        (64, [], None),
    ],
    ids=["more than any has", "they are taken", "one tells nothing", "an autoscaler may add the first"],
)
async def test_more_gpus_than_any_node_has_are_told_at_once(
    num_gpus: int, nodes: list[int], told: str | None
) -> None:
    world = World(scaling=EXTERNAL, replicas=1, resources={"limits": {"nvidia.com/gpu": num_gpus}})
    for number, amount in enumerate(nodes):
        world.put_gpu_node(f"gpu-{number}", "NVIDIA-H100-80GB-HBM3", amount)
    await world.reconcile()
    world.broken[world.status["updateRevision"]] = unschedulable_status(SHORT_OF_GPUS)
    await world.settle()
    assert brief(world, "Degraded") == [("True", "Unschedulable") if told else ("False", "Healthy")]
    assert (told or SHORT_OF_GPUS) in world.condition("Ready")["message"]
    assert world.pods(), "an autoscaler may add a node for it"


async def test_gpus_that_do_not_divide_the_heads_of_a_known_model_start_no_pod() -> None:
    gpus = {"limits": {"nvidia.com/gpu": 12}}
    world = World(scaling=EXTERNAL, replicas=1, model={"uri": "hf://org/chat@main"}, resources=gpus)
    world.model_revision = "0123456789abcdef0123456789abcdef01234567"
    world.model_facts = json.loads(find_facts(LLAMA_8B, stored_of(LLAMA_8B)).to_json())
    await world.settle()
    degraded = world.condition("Degraded")
    assert degraded["reason"] == "SettingsInvalid"
    assert "can't be shared by 12 workers" in degraded["message"]
    assert not world.pods()


@pytest.mark.parametrize(
    ("num_ready", "desired", "words"),
    [
        (1, 2, "1 of 2 desired replicas answer"),
        (2, 2, "2 of 2 desired replicas answer"),
        (3, 2, "3 replicas answer, and 2 are desired"),
        (2, 1, "2 replicas answer, and 1 is desired"),
    ],
)
def test_no_more_replicas_answer_than_there_are(num_ready: int, desired: int, words: str) -> None:
    assert count_replicas(num_ready, desired, "answer") == words


async def aborted() -> World:
    world = World(scaling=EXTERNAL, replicas=1, model={"uri": "file:///models/old"})
    await world.settle()
    world.edit(model={"uri": "file:///models/new"})
    await world.reconcile()
    order = Order(Action.ABORT, world.status["updateRevision"], render_time(world.now))
    service = world.service
    service["metadata"].setdefault("annotations", {})[ROLLOUT_ANNOTATION] = str(order)
    world.cluster.put(service)
    await world.settle()
    return world


async def test_after_an_abort_the_model_is_of_the_revision_that_serves() -> None:
    world = await aborted()
    assert world.status["model"]["uri"] == "file:///models/old"


async def test_a_command_in_a_message_names_the_namespace() -> None:
    world = await aborted()
    assert "kubectl millrace promote chat -n shop" in world.condition("Degraded")["message"]


class WithoutVersions(World):
    settings = RenderSettings(runtime_versions={"0.1.0": "registry.example.com/runtime:0.1.0"})


async def test_a_first_revision_of_an_unknown_version_is_not_ready() -> None:
    world = WithoutVersions(scaling=EXTERNAL, replicas=1, engine={"version": "9.9.9"})
    await world.settle()
    ready = world.condition("Ready")
    assert (ready["status"], ready["reason"]) == ("False", "SettingsInvalid")
    assert brief(world, "Progressing") == [("False", "SettingsInvalid")], "who waits for its end is told"
    world.edit(engine={"version": "9.9.8"})
    await world.settle()
    assert "9.9.8" in world.condition("Ready")["message"]
    assert world.condition("Ready")["observedGeneration"] == 2


RESTING = {"mode": "Automatic", "minReplicas": 0, "maxReplicas": 2, "activation": {"maxWait": "3m"}}
STARTING = Advice(1, "Starting", "1 replica", "current", is_held=False)
LOST = Advice(1, "SignalsMissing", "1 replica", "current", is_held=True, missing="every signal (refused)")


async def woken() -> World:
    """At zero until a request came; its replica crashes."""
    world = World(scaling=RESTING)
    await world.settle()
    world.demand = Demand(0, world.now)
    world.now += 600.0
    await world.settle()
    world.broken[world.status["currentRevision"]] = crash_status("no such device")
    world.demand, world.advice = Demand(1, None), STARTING
    await world.settle()
    return world


def brief(world: World, *names: str) -> list[tuple[str, str]]:
    found = [world.condition(name) for name in names]
    return [(one["status"], one["reason"]) for one in found]


async def test_a_wake_is_ready_for_as_long_as_requests_wait_for_it() -> None:
    world = await woken()
    told = brief(world, "Ready", "Degraded", "ScalingActive")
    assert told == [("True", "Waking"), ("True", "Crashing"), ("Unknown", "Starting")]
    assert "no such device" in world.condition("Ready")["message"]
    outcome = await world.reconcile()
    assert outcome.look_again == pytest.approx(181.0), "it looks again though nobody tells"
    world.now += 181.0
    await world.settle()
    assert brief(world, "Ready") == [("False", "Crashing")]
    world.broken.clear()
    for pod in world.pods():
        world.cluster.put({**pod, "status": {}})
    await world.settle()
    assert brief(world, "Ready", "UpToDate") == [("True", "Serving"), ("True", "Settled")]


async def test_state_says_that_signals_are_lost_and_that_a_time_is_quiet_it_does_not() -> None:
    objectives = [{"metric": "TimeToFirstToken", "percentile": 95, "target": "2s"}]
    world = World(scaling={"mode": "Automatic", "minReplicas": 1, "maxReplicas": 2, "objectives": objectives})
    world.advice = Advice(1, "AtMinimum", "1 replica", "minReplicas", is_held=False)
    await world.settle()
    names = "UpToDate", "ScalingActive", "ObjectivesMet"
    assert brief(world, *names) == [("True", "Settled"), ("True", "Deciding"), ("Unknown", "TooFewRequests")]
    world.now += 5.0
    world.advice = LOST
    await world.settle()
    assert brief(world, *names) == [
        ("True", "SignalsMissing"),
        ("False", "SignalsMissing"),
        ("Unknown", "SignalsMissing"),
    ]
    assert world.condition("UpToDate")["message"].endswith("unknown: every signal (refused)")


FIGURES = {
    "arrivalsPerSecond": "14.2",
    "forecastPerSecond": "15.1",
    "promptTokens": "3100",
    "generationTokens": "489",
    "generatedTokensPerSecond": "6944",
    "perReplicaPerSecond": "2.6",
    "limit": "P95 TimeToFirstToken",
    "running": 31,
    "waiting": 12,
    "candidates": [{"name": "forecast", "replicas": 6}],
    "attainment": {
        "error": "0.01",
        "metric": "TimeToFirstToken",
        "percentile": 95,
        "counts": [{"replicas": count, "inTime": "0.970", "seconds": "1.2"} for count in range(1, 10)],
    },
    "objectives": [
        {"metric": metric, "percentile": 95, "targetSeconds": "2", "state": "Met"}
        for metric in ("TimeToFirstToken", "QueueTime")
    ],
    "model": {"fitted": True, "samples": 400},
}


async def test_a_settled_status_is_short_to_describe() -> None:
    """With all that there is to tell: a cache, prices, a device, two objectives, five changes."""
    objectives = [
        {"metric": metric, "percentile": 95, "target": "2s"} for metric in ("TimeToFirstToken", "QueueTime")
    ]
    world = World(
        scaling={"mode": "Automatic", "minReplicas": 1, "maxReplicas": 20, "objectives": objectives},
        model={
            "uri": "hf://org/chat@main",
            "cache": {"type": "PersistentVolumeClaim", "claimName": "models"},
        },
        resources={"limits": {"nvidia.com/gpu": 1, "cpu": 4}},
        cost={"resourceHours": {"nvidia.com/gpu": "2.50", "cpu": "0.04"}, "currency": "EUR"},
    )
    world.model_revision = "0123456789abcdef0123456789abcdef01234567"
    world.model_facts = json.loads(find_facts(LLAMA_8B, stored_of(LLAMA_8B)).to_json())
    world.put_claim("models")
    for count in range(2, 9):
        world.now += 60.0
        evidence = {**FIGURES, "observedAt": render_time(world.now)}
        world.advice = Advice(count, "Steady", "fits", "forecast", is_held=False, evidence=evidence)
        await world.settle()
        world.replicas = {pod["metadata"]["name"]: H100 for pod in world.pods()}
        await world.settle()
    status = Status.model_validate(world.status).model_dump(by_alias=True, exclude_none=True)
    assert status["model"]["serving"]
    assert len(status["scaling"]["lastChanges"]) == 5
    del status["conditions"]
    lines = yaml.safe_dump({"status": world.status | {"conditions": None}}, width=1000).splitlines()
    assert len(lines) - 1 <= 60, "\n".join(lines)
    evidence = status["scaling"]["evidence"]
    assert len(evidence) + len(evidence["latencies"]) <= 15
