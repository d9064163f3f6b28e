"""Models that are known to fit, or not, before a pod of theirs starts."""

import json
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from millrace_fetch.cli.remote_model import resolve
from millrace_fetch.fetch import open_source
from millrace_fetch.image import tarball
from millrace_fetch.plan.head import ModelHead, describe_head
from millrace_fetch.plan.uri import Order, parse_uri
from millrace_fit.facts import ModelFacts, find_facts
from millrace_fit.files.needed import explain_tokenizer
from millrace_fit.tensors import assume_tensors
from millrace_fit.verdict import Answer, Verdict
from millrace_operator.api.types import Spec
from millrace_operator.model.fit import find_device, judge_fit
from millrace_operator.model.found_model import FoundModel
from testing.checkpoints.models import LLAMA_8B, stored_of
from testing.model_sources.registry import TAR, Registry, make_tar
from testing.world import World
from tests.fit.quantized import AWQ, FP8_BLOCK
from tests.operator.model.test_resolve import EXTERNAL, FIRST, MAIN
from tests.operator.test_argocd_health import judge

FACTS = find_facts(LLAMA_8B, stored_of(LLAMA_8B))
GPU = {"limits": {"nvidia.com/gpu": 1}}


def make_world(facts: ModelFacts = FACTS, **spec: Any) -> World:
    world = World(**{"model": MAIN, "scaling": EXTERNAL, "replicas": 2, **spec})
    world.model_revision = FIRST
    world.model_facts = json.loads(facts.to_json())
    return world


def on_node(product: str) -> dict[str, Any]:
    return {"nodeSelector": {"nvidia.com/gpu.product": product}}


async def test_gpus_that_do_not_divide_the_heads_are_the_settings_fault_on_any_device() -> None:
    world = make_world(resources={"limits": {"nvidia.com/gpu": 12}})
    await world.settle()
    degraded = world.condition("Degraded")
    assert degraded["reason"] == "SettingsInvalid"
    counts = "take 1, 2, 3, 4, 5, 6, 7, 8 or 16 (nvidia.com/gpu: N under spec.resources.limits)"
    assert counts in degraded["message"]
    assert not world.pods()


def test_a_smaller_kv_cache_is_told_where_sequences_would_be_short() -> None:
    def verdict_on(kv_cache: str) -> Verdict:
        model = {**MAIN, "quantization": {"kvCache": kv_cache}}
        spec = Spec.model_validate({"model": model, "resources": {"limits": {"memory": "32Gi"}}})
        return judge_fit(spec, FACTS).verdict

    assert verdict_on("Model").answer is Answer.TIGHT
    assert str(verdict_on("Model")).endswith("it fits with spec.model.quantization.kvCache: Int8")
    assert verdict_on("Int8").answer is Answer.FITS


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"resources": {"limits": {"memory": "64Gi"}}}, "a KV cache in Fp8 has kernels for GPUs only"),
        ({"resources": GPU, "pod": on_node("NVIDIA-A100-SXM4-80GB")}, "a100-80g has no FP8"),
    ],
)
async def test_a_kv_cache_without_kernels_starts_no_pod(spec: dict[str, Any], words: str) -> None:
    world = make_world(**spec, model={**MAIN, "quantization": {"kvCache": "Fp8"}})
    await world.settle()
    degraded = world.condition("Degraded")
    assert degraded["reason"] == "SettingsInvalid"
    assert f"{words}: write spec.model.quantization.kvCache: Int8" in degraded["message"]
    assert not world.pods()


async def test_weights_that_are_larger_than_the_memory_start_no_pod() -> None:
    world = make_world(resources={"limits": {"memory": "8Gi"}})
    await world.settle()
    for name in ("Ready", "ModelReady", "UpToDate"):
        condition = world.condition(name)
        assert (condition["status"], condition["reason"]) == ("False", "DoesNotFit"), name
    message = world.condition("ModelReady")["message"]
    assert "weights of 14.96 GiB" in message
    assert "8.00 GiB of the pod" in message
    assert "it fits with" in message, "the nearest setting"
    assert world.condition("Progressing")["status"] == "True", "nobody is told that it is settled"
    assert judge(world.service)[0] == "Degraded"
    assert not world.objects("Deployment")
    assert not world.pods()
    assert world.status["model"]["fit"] == "DoesNotFit"
    assert world.status["model"]["resolvedRevision"] == FIRST


ON_CPUS = {"resources": {"limits": {"memory": "12Gi"}}}
ON_A_GPU = {"resources": GPU, "pod": {"nodeSelector": {"nvidia.com/gpu.memory": "14000"}}}
SHORT = {"engine": {"maxModelLength": 4096}}
TWO = " (nvidia.com/gpu: 2 under spec.resources.limits)"


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (ON_CPUS | SHORT, "it fits with spec.model.quantization.weights: Int8"),
        (
            {**SHORT, "resources": {"limits": {"memory": "4Gi"}}},
            "it fits with spec.resources.limits.memory: 18Gi",
        ),
        (ON_A_GPU | SHORT, f"it fits on 2 of these GPUs{TWO}"),
        (
            {**ON_A_GPU, **SHORT, "parallelism": {"tensor": 1}},
            f"it fits on 2 of these GPUs{TWO[:-1]} and spec.parallelism.tensor: 2)",
        ),
    ],
)
async def test_the_nearest_setting_is_told_as_the_manifest_has_it(spec: dict[str, Any], words: str) -> None:
    world = make_world(**spec)
    await world.settle()
    message = world.condition("ModelReady")["message"]
    assert words in message
    assert "--" not in message


@pytest.mark.parametrize(
    ("facts", "spec", "words"),
    [
        (FACTS, {"maxModelLength": 131072}, "it fits with spec.engine.maxModelLength: 36640"),
        (FACTS, {"maxSequences": 256, "maxBatchedTokens": 16}, "write spec.engine.maxBatchedTokens: 256 or"),
    ],
)
async def test_sizes_of_the_engine_are_told_as_the_manifest_has_them(
    facts: ModelFacts, spec: dict[str, Any], words: str
) -> None:
    world = make_world(facts, resources=GPU, pod=on_node("NVIDIA-L4"), engine=spec)
    await world.settle()
    assert words in world.status["model"]["fitMessage"]
    assert "--" not in world.status["model"]["fitMessage"]


async def test_a_refused_model_is_refused_for_days_in_the_same_words() -> None:
    world = make_world(resources={"limits": {"memory": "8Gi"}})
    await world.settle()
    conditions = world.status["conditions"]
    world.now += 3 * 86400
    world.restart_operator()
    await world.settle()
    assert (len(world.objects("Job")), world.status["conditions"]) == (1, conditions)
    assert "rollout" not in world.status


async def test_a_larger_device_makes_it_run() -> None:
    world = make_world(resources={"limits": {"memory": "8Gi"}})
    await world.settle()
    world.edit(resources={"limits": {"memory": "64Gi"}})
    await world.settle()
    assert len(world.pods()) == 2
    assert world.condition("UpToDate")["status"] == "True"
    assert world.condition("Degraded")["status"] == "False"
    assert world.status["model"]["fit"] in ("Fits", "Tight")
    assert not world.objects("Job")


async def test_what_serves_goes_on_beside_a_model_that_does_not_fit() -> None:
    world = make_world(model={"uri": "file:///models/stories"}, resources={"limits": {"memory": "8Gi"}})
    await world.settle()
    serving = world.status["currentRevision"]
    world.edit(model=MAIN)
    await world.settle()
    assert world.deployments() == {serving: 2}
    assert world.condition("Ready")["status"] == "True"
    assert world.condition("Degraded")["reason"] == "DoesNotFit"
    assert world.condition("UpToDate")["status"] == "False"


async def test_an_architecture_that_no_replica_serves_is_refused_by_its_name() -> None:
    gemma = LLAMA_8B | {"architectures": ["GemmaForCausalLM"]}
    world = make_world(find_facts(gemma, stored_of(LLAMA_8B)))
    await world.settle()
    degraded = world.condition("Degraded")
    assert degraded["reason"] == "ModelInvalid"
    assert "GemmaForCausalLM" in degraded["message"]
    assert not world.objects("Deployment")


NO_TOKENIZER = explain_tokenizer(["config.json", "tokenizer.model"])


@pytest.mark.parametrize(
    ("names", "fault", "words"),
    [
        ({"config.json", "m.Q4.gguf"}, None, "There are GGUF (m.Q4.gguf)"),
        ({"config.json", "model.safetensors"}, NO_TOKENIZER, "Convert tokenizer.model with transformers"),
    ],
)
async def test_a_file_that_no_replica_reads_is_refused_by_its_name(
    names: set[str], fault: str | None, words: str
) -> None:
    facts = describe_head(ModelHead(FIRST, LLAMA_8B, {}, frozenset(names), 0, fault=fault))
    world = make_world(facts)
    await world.settle()
    degraded = world.condition("Degraded")
    assert degraded["reason"] == "ModelInvalid"
    assert words in degraded["message"]
    assert not world.objects("Deployment")


@pytest.mark.parametrize(
    "config", [LLAMA_8B, {name: LLAMA_8B[name] for name in LLAMA_8B if "dtype" not in name}]
)
async def test_no_figure_is_told_of_weights_that_nobody_has_read(config: dict[str, Any]) -> None:
    facts = describe_head(ModelHead(FIRST, config, {}, frozenset({"config.json", "m.Q4.gguf"}), 0))
    world = make_world(facts)
    await world.settle()
    figures = {"parameters", "dtype"}
    assert not figures & world.status["model"].keys()
    assert world.status["model"]["architecture"] == "LlamaForCausalLM"
    assert world.status["model"]["contextLength"] == 131072, "config.json says it"


async def test_an_image_that_is_too_large_starts_no_pod(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Of a compressed layer that can't come whole config.json tells it."""
    monkeypatch.setattr(tarball, "MAX_FETCHED_BYTES", 100_000)
    files = {
        "models/config.json": json.dumps(LLAMA_8B).encode(),
        "models/x": Random(7).randbytes(200_000),
    }
    async with Registry() as registry:
        registry.push([(make_tar(files, gzipped=True), TAR, {})])
        order = Order(parse_uri(f"{registry.uri}:v1"), tmp_path)
        told = await resolve(order, open_source(order), print)
    found = FoundModel.read(json.loads(told.render()))
    assert found is not None
    assert found.facts is not None
    world = make_world(found.facts, resources={"limits": {"memory": "8Gi"}})
    await world.settle()
    assert world.condition("ModelReady")["reason"] == "DoesNotFit"
    assert "weights of 14.96 GiB" in world.condition("ModelReady")["message"]
    assert not world.objects("Deployment")


async def test_status_tells_what_was_found() -> None:
    world = make_world(resources=GPU, pod=on_node("NVIDIA-H100-80GB-HBM3"))
    await world.settle()
    model = world.status["model"]
    told = {
        "architecture": "LlamaForCausalLM",
        "dtype": "bfloat16",
        "contextLength": 131072,
        "fit": "Fits",
        "sizeBytes": 16 * 2**30,
    }
    assert told.items() <= model.items()
    assert model["parameters"] == 8_030_261_248
    assert "KV cache" in model["fitMessage"]


async def test_a_quantised_model_is_counted_as_it_is_stored() -> None:
    config = LLAMA_8B | {"quantization_config": FP8_BLOCK}
    facts = find_facts(config, assume_tensors(config, {}) or {})
    world = make_world(facts, resources={"limits": {"memory": "10Gi"}})
    await world.settle()
    assert world.status["model"]["quantization"] == "FP8"
    assert world.status["model"]["parameters"] == 8_030_261_248
    assert len(world.pods()) == 2


async def test_a_quantised_model_is_not_rounded_again() -> None:
    config = LLAMA_8B | {"quantization_config": AWQ}
    facts = find_facts(config, assume_tensors(config, {}) or {})
    world = make_world(facts, model=MAIN | {"quantization": {"weights": "Int8"}})
    await world.settle()
    degraded = world.condition("Degraded")
    assert degraded["reason"] == "SettingsInvalid"
    assert "quantised already" in degraded["message"]
    assert "spec.model.quantization.weights: FromCheckpoint" in degraded["message"]
    assert not world.pods()


async def test_a_cache_that_is_tight_is_a_warning_with_what_fits() -> None:
    world = make_world(resources=GPU, pod=on_node("NVIDIA-L4"))
    await world.settle()
    assert len(world.pods()) == 2
    assert world.status["model"]["fit"] == "Tight"
    assert "36,640 tokens" in world.status["model"]["fitMessage"]


async def test_an_accelerator_that_is_not_known_stays_unknown_and_starts() -> None:
    world = make_world(resources=GPU)
    await world.settle()
    assert world.status["model"]["fit"] == "Unknown"
    assert len(world.pods()) == 2


async def test_facts_of_another_version_keep_no_pod_away() -> None:
    world = make_world()
    world.model_facts = {"shape": "unheard of"}
    await world.settle()
    assert len(world.pods()) == 2
    assert "fit" not in world.status["model"]


async def test_a_type_that_nobody_serves_is_not_told() -> None:
    """A tenant's pod may write anything, and the API server would refuse the whole status."""
    world = make_world(replace(FACTS, served_type="x" * 500))
    await world.settle()
    assert world.status["model"]["architecture"] == "LlamaForCausalLM"
    assert "dtype" not in world.status["model"]


@pytest.mark.parametrize(
    ("spec", "gib"),
    [
        ({"resources": {"limits": {"memory": "16Gi"}}}, 16.0),
        ({"resources": {"limits": {"nvidia.com/mig-1g.10gb": 1}}}, 9.5),
        ({"resources": GPU, "pod": on_node("NVIDIA-A100-SXM4-40GB")}, 39.3),
        ({"resources": GPU, "pod": {"nodeSelector": {"nvidia.com/gpu.memory": "81559"}}}, 79.0),
    ],
)
def test_the_device_is_the_one_that_the_spec_names(spec: dict[str, Any], gib: float) -> None:
    parsed = Spec.model_validate({"model": MAIN, **spec})
    device = find_device(parsed, is_on_gpus="memory" not in parsed.resources.limits)
    assert device is not None
    assert round(device.memory_bytes / 2**30, 1) == gib


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"resources": GPU},
        {"resources": {"limits": {"memory": "much"}}},
        {"resources": GPU, "pod": {"resourceClaims": [{"name": "gpu", "resourceClaimName": "g"}]}},
    ],
)
def test_what_the_spec_does_not_name_is_not_guessed(spec: dict[str, Any]) -> None:
    fit = judge_fit(Spec.model_validate({"model": MAIN, **spec}), FACTS)
    assert (fit.verdict.answer, fit.refusal) == (Answer.UNKNOWN, None)
