"""Models whose device the labels of nodes tell: as nodes come, differ and go."""

import json
from dataclasses import replace
from typing import Any

import pytest

from millrace_fit.accelerators import LABEL_MEMORY
from millrace_fit.facts import find_facts
from millrace_fit.verdict import Answer
from millrace_operator.api.conditions import Reason
from millrace_operator.api.types import Spec
from millrace_operator.kube.node import GpuNode
from millrace_operator.model.fit import judge_fit
from testing.checkpoints.models import LLAMA_8B, stored_of
from testing.world import World
from tests.operator.model.test_fill import get_filler
from tests.operator.model.test_fill import make_world as make_filling_world
from tests.operator.model.test_fit import FACTS, GPU, make_world, on_node
from tests.operator.model.test_resolve import MAIN

LARGE_FACTS = find_facts(
    LLAMA_8B | {"num_hidden_layers": 96}, stored_of(LLAMA_8B | {"num_hidden_layers": 96})
)
"""Of weights that are larger than an L4's memory, and smaller than an H100's."""
L4, H100, T4 = "NVIDIA-L4", "NVIDIA-H100-80GB-HBM3", "Tesla-T4"


def make_large(**spec: Any) -> World:
    world = make_world(LARGE_FACTS, **{"resources": GPU, **spec})
    world.model_facts = json.loads(LARGE_FACTS.to_json())
    return world


def gpu_node(product: str = "", memory: str = "", num_gpus: int = 8, **labels: str) -> GpuNode:
    found = {"nvidia.com/gpu.product": product, LABEL_MEMORY: memory}
    kept = {name: text for name, text in found.items() if text}
    return GpuNode({**kept, **labels}, {"nvidia.com/gpu": str(num_gpus)})


def judge_spec(*nodes: GpuNode, facts: Any = FACTS, **spec: Any) -> Any:
    return judge_fit(Spec.model_validate({"model": MAIN, "resources": GPU, **spec}), facts, nodes)


async def test_weights_larger_than_the_gpus_of_all_nodes_start_no_pod_and_the_words_say_what_lifts_it() -> (
    None
):
    world = make_large()
    world.put_gpu_node("a", L4)
    world.put_gpu_node("b", L4)
    await world.settle()
    ready = world.condition("ModelReady")
    assert (ready["status"], ready["reason"]) == ("False", "DoesNotFit")
    assert L4 in ready["message"]
    assert "pod.nodeSelector" in ready["message"]
    assert not world.objects("Deployment")
    assert world.status["model"]["fit"] == "DoesNotFit"


async def test_what_was_told_outlasts_its_job_and_another_operator() -> None:
    world = make_large()
    world.put_gpu_node("a", L4)
    await world.settle()
    jobs = world.objects("Job")
    world.settings = replace(world.settings, fetch_image="another.example/fetch:2")
    world.restart_operator()
    await world.settle()
    assert world.objects("Job") == jobs, "it was told, and is asked again when it is time"
    assert world.condition("ModelReady")["reason"] == "DoesNotFit"


async def test_a_larger_node_that_comes_lifts_a_refusal_and_its_going_takes_nothing_back() -> None:
    world = make_large()
    world.put_gpu_node("a", L4)
    await world.settle()
    world.put_gpu_node("b", H100)
    await world.settle()
    assert len(world.pods()) == 2
    told = world.status["model"]
    assert told["fit"] == "Tight", "a pod may get either"
    assert f"write nvidia.com/gpu.product: {H100} under pod.nodeSelector" in told["fitMessage"]
    world.cluster.writes.clear()
    for _ in range(3):
        world.delete_node("b")
        await world.settle()
        world.put_gpu_node("b", H100)
        await world.settle()
    world.restart_operator()
    await world.settle()
    assert world.cluster.writes == []
    assert world.status["model"] == told


async def test_a_device_plugin_that_starts_anew_lifts_no_refusal() -> None:
    world = make_large()
    world.put_gpu_node("a", L4)
    await world.settle()
    world.put_gpu_node("a", L4, num_gpus=0)
    world.restart_operator()
    await world.settle()
    assert world.condition("ModelReady")["reason"] == "DoesNotFit"
    assert not world.objects("Deployment")


async def test_a_node_selector_that_no_node_has_yet_starts_the_pods() -> None:
    """An autoscaler adds the node for them."""
    world = make_large()
    world.put_gpu_node("a", L4)
    await world.settle()
    world.edit(pod={"nodeSelector": {"pool": "large"}})
    await world.settle()
    assert len(world.pods()) == 2
    assert world.status["model"]["fit"] == "Unknown"
    world.put_gpu_node("b", "NVIDIA-H200", pool="large")
    await world.reconcile_until_quiet()
    assert world.status["model"]["fit"] == "Fits", "what became known stays known"
    told = world.status["model"]
    world.delete_node("b")
    await world.reconcile_until_quiet()
    assert world.status["model"] == told


async def test_a_change_of_the_spec_is_judged_anew() -> None:
    world = make_world(resources=GPU)
    world.put_gpu_node("a", H100)
    await world.settle()
    assert world.status["model"]["fit"] == "Fits"
    world.delete_node("a")
    world.put_gpu_node("b", L4)
    world.edit(engine={"maxSequences": 7})
    await world.settle()
    assert world.status["model"]["fit"] == "Tight"
    assert L4 in world.status["model"]["fitMessage"]


async def test_a_revision_that_serves_is_not_unmade_by_the_nodes_of_another_day() -> None:
    world = make_large()
    await world.settle()
    serving = world.status["currentRevision"]
    world.put_gpu_node("a", L4)
    await world.settle()
    assert world.deployments() == {serving: 2}
    assert world.condition("Ready")["status"] == "True"
    assert world.condition("ModelReady")["status"] == "True"


@pytest.mark.parametrize(
    ("nodes", "spec", "answer"),
    [
        ([], {}, Answer.UNKNOWN),
        ([gpu_node(L4)], {}, Answer.TIGHT),
        ([gpu_node(H100), gpu_node(H100, host="b")], {}, Answer.FITS),
        ([gpu_node("", "81559")], {}, Answer.FITS),
        ([gpu_node()], {}, Answer.UNKNOWN),
        ([gpu_node(H100), gpu_node()], {}, Answer.UNKNOWN),
        ([gpu_node(H100), gpu_node(L4)], {}, Answer.TIGHT),
        ([gpu_node(T4), gpu_node(H100)], {"pod": {"nodeSelector": {"pool": "a"}}}, Answer.UNKNOWN),
        ([gpu_node(T4), gpu_node(H100, pool="a")], {"pod": {"nodeSelector": {"pool": "a"}}}, Answer.FITS),
        ([gpu_node(T4)], {"pod": on_node(H100)}, Answer.FITS),
        ([gpu_node(H100, num_gpus=1)], {"resources": {"limits": {"nvidia.com/gpu": 2}}}, Answer.UNKNOWN),
        ([gpu_node(H100)], {"resources": {"limits": {"nvidia.com/mig-9g.1gb": 1}}}, Answer.UNKNOWN),
        ([gpu_node(H100)], {"resources": {"limits": {"amd.com/gpu": 1}}}, Answer.UNKNOWN),
        ([gpu_node(H100)], {"resources": {}}, Answer.UNKNOWN),
        (
            [gpu_node(H100)],
            {"pod": {"resourceClaims": [{"name": "gpu", "resourceClaimName": "g"}]}},
            Answer.UNKNOWN,
        ),
    ],
)
def test_the_nodes_that_a_pod_could_get_tell_the_device(
    nodes: list[GpuNode], spec: dict[str, Any], answer: Answer
) -> None:
    fit = judge_spec(*nodes, **spec)
    assert (fit.verdict.answer, fit.refusal) == (answer, None)


def test_a_model_is_judged_by_the_smallest_of_gpus_that_all_fit() -> None:
    only, both = judge_spec(gpu_node(H100)), judge_spec(gpu_node("NVIDIA-H200"), gpu_node(H100))
    assert both.verdict.plan == only.verdict.plan
    assert H100 in str(both.verdict)


def test_words_choose_by_memory_where_products_have_one_name() -> None:
    fit = judge_spec(gpu_node("GPU", "15360"), gpu_node("GPU", "81559"))
    assert f'write {LABEL_MEMORY}: "81559" under pod.nodeSelector' in str(fit.verdict)


def test_gpus_without_the_models_numbers_are_refused_until_others_come() -> None:
    fit = judge_spec(gpu_node(T4))
    assert fit.refusal is not None
    assert fit.refusal.reason is Reason.DOES_NOT_FIT
    assert "no bfloat16" in fit.refusal.message
    assert judge_spec(gpu_node(T4), gpu_node(L4)).refusal is None


def test_what_runs_on_no_gpu_is_the_settings_fault_and_not_the_nodes() -> None:
    fit = judge_spec(gpu_node(H100, num_gpus=64), resources={"limits": {"nvidia.com/gpu": 64}})
    assert fit.refusal is not None
    assert fit.refusal.reason is Reason.SETTINGS_INVALID


def test_many_kinds_of_gpus_are_not_all_named() -> None:
    nodes = [gpu_node(f"GPU-{number}", str(8000 + number)) for number in range(9)]
    fit = judge_spec(*nodes, facts=LARGE_FACTS)
    assert "GPU-3 and others" in str(fit.verdict)


async def test_a_model_on_its_way_into_a_claim_is_judged_no_more() -> None:
    """Each node that goes and comes would throw its download away."""
    world = make_filling_world("ReadWriteMany", resources=GPU)
    world.model_facts = json.loads(LARGE_FACTS.to_json())
    world.put_gpu_node("a", "NVIDIA-H200")
    await world.settle()
    job, told = get_filler(world), world.status["model"]
    world.delete_node("a")
    world.put_gpu_node("b", L4)
    await world.settle()
    assert (get_filler(world), world.status["model"]) == (job, told)
    world.is_filled = True
    await world.settle()
    assert len(world.pods()) == 2
    assert world.status["model"]["fitMessage"] == told["fitMessage"]
