import pytest

from millrace_operator.api.model_types import Model
from millrace_operator.api.types import Spec
from millrace_operator.kube.kinds import SERVICE, Obj
from millrace_operator.render.child import render_child
from millrace_operator.render.jobs import render_resolve_job
from millrace_operator.render.model_source import model_path
from millrace_operator.render.pod_template import (
    START_SECONDS,
    render_arguments,
    render_pod_template,
)
from millrace_operator.render.settings import RenderSettings
from millrace_operator.render.workload import (
    render_disruption_budget,
    render_headless_service,
    render_service,
)
from millrace_runtime import contract
from testing.world import make_service

SETTINGS = RenderSettings(gateway_port=8080)


def template(**spec: object) -> Obj:
    service = make_service(**spec)
    service["metadata"]["uid"] = "u"
    return render_pod_template(SETTINGS, service, Spec.model_validate(service["spec"]), "r1")


def test_arguments_say_only_what_was_written() -> None:
    service = make_service()
    assert render_arguments(service, Spec.model_validate(service["spec"])) == [
        "serve", "--model", "/models/stories", "--served-name", "chat",
    ]  # fmt: skip


def test_a_replica_may_start_for_a_week_whether_its_image_holds_the_probe_or_not() -> None:
    probe = template()["spec"]["containers"][0]["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] == START_SECONDS == 7 * 24 * 3600
    assert probe["failureThreshold"] < 2**31, "the API server takes an int32"
    assert contract.STARTED_WAIT_SECONDS <= probe["periodSeconds"] < probe["timeoutSeconds"]


def test_every_engine_setting_reaches_the_replica() -> None:
    sizes = {"maxModelLength": 10, "maxSequences": 20, "maxBatchedTokens": 30}
    args = template(engine=sizes, model={"uri": "file:///m", "servedName": "n"})["spec"]["containers"][0][
        "args"
    ]
    assert args[5:] == ["--max-model-length", "10", "--max-sequences", "20", "--max-batched-tokens", "30"]
    assert args[4] == "n"


def test_rounded_weights_reach_the_replica_and_the_default_needs_no_flag() -> None:
    def arguments(weights: str) -> list[str]:
        model = {"uri": "file:///m", "servedName": "n", "quantization": {"weights": weights}}
        rendered: list[str] = template(model=model)["spec"]["containers"][0]["args"]
        return rendered

    assert arguments("Int4")[5:] == ["--weights", "Int4"]
    assert arguments("FromCheckpoint")[5:] == []


def test_a_rounded_kv_cache_reaches_the_replica_and_the_default_needs_no_flag() -> None:
    def of(form: str) -> list[str]:
        return arguments(model={"uri": "file:///m", "servedName": "n", "quantization": {"kvCache": form}})

    assert of("Int8") == ["--kv-cache", "Int8"]
    assert of("Fp8") == ["--kv-cache", "Fp8"]
    assert of("Model") == []


def arguments(**spec: object) -> list[str]:
    rendered: list[str] = template(**spec)["spec"]["containers"][0]["args"]
    return rendered[5:]


def test_speculation_reaches_the_replica_with_four_tokens_where_none_are_written() -> None:
    def speculate(**fields: object) -> list[str]:
        return arguments(model={"uri": "file:///m", "speculation": {"method": "NGram", **fields}})

    assert speculate() == ["--speculative-tokens", "4"]
    assert speculate(tokens=16) == ["--speculative-tokens", "16"]


def objectives(*targets: tuple[str, str]) -> dict[str, object]:
    percentiles = range(95, 99)
    found = [
        {"metric": metric, "percentile": percentile, "target": target}
        for (metric, target), percentile in zip(targets, percentiles, strict=False)
    ]
    return {"objectives": found}


TOKEN = "TimePerOutputToken"


@pytest.mark.parametrize(
    ("targets", "rendered"),
    [
        ([], []),
        ([("TimeToFirstToken", "2s"), ("EndToEndLatency", "30s")], []),
        ([(TOKEN, "50ms")], ["50ms"]),
        ([(TOKEN, "1m30s"), ("TimeToFirstToken", "10ms"), (TOKEN, "62.5ms")], ["62.5ms"]),
        ([(TOKEN, "48h")], ["48h"]),
        ([(TOKEN, "0.05ms")], ["0.05ms"]),
    ],
)
def test_the_tightest_objective_of_a_token_reaches_the_replica(
    targets: list[tuple[str, str]], rendered: list[str]
) -> None:
    """Within what the flag takes: nobody wrote it, so no replica may refuse it."""
    seconds = {"50ms": "0.05", "62.5ms": "0.0625", "48h": "86400", "0.05ms": "0.0001"}
    flags = [part for text in rendered for part in ("--target-inter-token-seconds", seconds[text])]
    assert arguments(scaling=objectives(*targets)) == flags


def test_an_engine_of_another_version_gets_no_flag_that_its_owner_did_not_ask_for() -> None:
    settings = RenderSettings(
        runtime_image="r:0.2.0", runtime_versions={"0.1.0": "r:0.1.0", "0.2.0": "r:0.2.0"}
    )

    def has_target(version: str | None) -> bool:
        service = make_service(scaling=objectives((TOKEN, "50ms")), engine={"version": version})
        rendered = render_pod_template(settings, service, Spec.model_validate(service["spec"]), "r1")
        return "--target-inter-token-seconds" in rendered["spec"]["containers"][0]["args"]

    service_versions = ("0.1.0", "0.2.0", None)
    assert [has_target(version) for version in service_versions] == [False, True, True]


def test_an_engine_of_another_version_is_asked_where_it_surely_answers() -> None:
    versions = {"0.1.0": "r:0.1.0", "0.2.0": "r:0.2.0"}
    settings = RenderSettings(runtime_image="r:0.2.0", runtime_versions=versions)

    def ready_port(version: str) -> int:
        service = make_service(engine={"version": version})
        rendered = render_pod_template(settings, service, Spec.model_validate(service["spec"]), "r1")
        port: int = rendered["spec"]["containers"][0]["readinessProbe"]["httpGet"]["port"]
        return port

    assert [ready_port(version) for version in versions] == [8000, 8001]


def test_a_model_lies_on_all_whole_gpus_and_never_on_cpus_instead() -> None:
    def on(limits: dict[str, object]) -> list[str]:
        return arguments(resources={"limits": limits})

    assert on({"cpu": 8}) == []
    assert on({"nvidia.com/gpu": 1}) == ["--device", "cuda"]
    assert on({"nvidia.com/gpu": "4", "cpu": 8}) == ["--device", "cuda", "--tensor-parallel", "4"]
    assert on({"amd.com/gpu": 2}) == ["--device", "cuda", "--tensor-parallel", "2"]
    assert on({"nvidia.com/mig-1g.10gb": 2}) == ["--device", "cuda"]
    assert on({"nvidia.com/gpu.shared": 3}) == ["--device", "cuda"]
    assert on({"amd.com/cpx_nps4": 2}) == ["--device", "cuda"]
    assert on({"nvidia.com/gpu": 0}) == []
    assert on({"google.com/tpu": 4}) == []
    assert on({"rdma/hca": 2}) == []


@pytest.mark.parametrize(
    "name",
    [
        "nvidia.com/gpu",
        "nvidia.com/mig-1g.10gb",
        "amd.com/gpu",
        "amd.com/cpx_nps4",
        "gpu.intel.com/i915",
        "gpu.intel.com/xe",
        "habana.ai/gaudi",
        "aws.amazon.com/neuron",
        "google.com/tpu",
        "example.com/not-invented-yet",
    ],
)
def test_an_extended_resource_of_any_name_reaches_the_pod_as_it_is_written(name: str) -> None:
    limits = {"cpu": "1500m", name: 2}
    container = template(resources={"limits": limits, "requests": {name: "2"}})["spec"]["containers"][0]
    assert container["resources"] == {"limits": {"cpu": "1500m", name: "2"}, "requests": {name: "2"}}


def test_slices_have_as_many_workers_as_are_written() -> None:
    resources = {"limits": {"amd.com/cpx_nps4": 2}}
    assert arguments(resources=resources, parallelism={"tensor": 2})[2:] == ["--tensor-parallel", "2"]


def test_workers_without_gpus_share_the_cores() -> None:
    assert arguments(parallelism={"tensor": 2}) == ["--tensor-parallel", "2"]
    assert arguments(parallelism={"tensor": 1}) == []


def test_gpus_workers_have_memory_to_meet_in() -> None:
    def mounts(**spec: object) -> list[str]:
        pod = template(**spec)["spec"]
        assert [volume["name"] for volume in pod["volumes"]] == [
            mount["name"] for mount in pod["containers"][0]["volumeMounts"]
        ]
        return [mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]]

    assert mounts(resources={"limits": {"nvidia.com/gpu": 2}}) == ["/tmp", "/dev/shm"]
    assert mounts(resources={"limits": {"nvidia.com/gpu": 1}}) == ["/tmp"]
    assert mounts(parallelism={"tensor": 2}) == ["/tmp"]


def test_a_claim_is_mounted_read_only() -> None:
    spec = template(model={"uri": "pvc://weights/llama/8b"})["spec"]
    assert spec["volumes"][1]["persistentVolumeClaim"] == {"claimName": "weights", "readOnly": True}
    assert spec["containers"][0]["volumeMounts"][1]["readOnly"]
    assert model_path(Model(uri="pvc://weights/llama/8b"), None) == "/mnt/model/llama/8b"


COMMIT = "0123456789abcdef0123456789abcdef01234567"
HUB_URI = f"hf://acme/chat-8b@{COMMIT}"


def test_a_model_of_a_hub_is_fetched_into_the_pod_before_the_replica_starts() -> None:
    spec = template(model={"uri": HUB_URI})["spec"]
    (fetcher,) = spec["initContainers"]
    assert fetcher["args"] == [
        "fetch", HUB_URI, "--to", "/mnt/model", "--progress-port", "8002", "--no-sync",
    ]  # fmt: skip
    assert (fetcher["name"], fetcher["image"]) == ("fetch", SETTINGS.fetch_image)
    assert {"name": "model", "mountPath": "/mnt/model"} in fetcher["volumeMounts"]
    assert {"name": "model", "emptyDir": {}} in spec["volumes"]
    replica = spec["containers"][0]
    assert replica["args"][:3] == ["serve", "--model", "/mnt/model"]
    assert {"name": "model", "mountPath": "/mnt/model", "readOnly": True} in replica["volumeMounts"]
    assert "envFrom" not in fetcher


def test_the_secret_of_a_model_goes_to_the_fetching_container_alone() -> None:
    model = {"uri": HUB_URI, "credentials": {"secretName": "hub-token"}}
    spec = template(model=model)["spec"]
    assert spec["initContainers"][0]["envFrom"] == [{"secretRef": {"name": "hub-token"}}]
    assert "hub-token" not in str(spec["containers"])


def test_the_fetching_container_has_the_pods_variables_and_the_replicas_room_without_its_gpu() -> None:
    limits = {"nvidia.com/gpu": 1, "memory": "64Gi"}
    spec = template(
        model={"uri": HUB_URI},
        pod={"env": [{"name": "HTTPS_PROXY", "value": "http://proxy.example:3128"}]},
        resources={"limits": limits, "requests": {"ephemeral-storage": "40Gi"}},
    )["spec"]
    (fetcher,) = spec["initContainers"]
    assert fetcher["env"][-1] == {"name": "HTTPS_PROXY", "value": "http://proxy.example:3128"}
    assert fetcher["resources"] == {
        "limits": {"memory": "64Gi"},
        "requests": {"ephemeral-storage": "40Gi"},
    }


@pytest.mark.parametrize("uri", ["file:///models/m", "pvc://weights/llama"])
def test_a_model_at_hand_is_not_fetched(uri: str) -> None:
    assert "initContainers" not in template(model={"uri": uri})["spec"]


def test_the_pod_keeps_the_restricted_profile() -> None:
    spec = template(model={"uri": HUB_URI})["spec"]
    assert spec["securityContext"]["runAsNonRoot"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["enableServiceLinks"] is False
    for container in (*spec["initContainers"], *spec["containers"]):
        security = container["securityContext"]
        assert security["capabilities"] == {"drop": ["ALL"]}
        assert not security["allowPrivilegeEscalation"]
        assert security["readOnlyRootFilesystem"]


def test_a_drain_has_time_and_the_last_words_are_kept() -> None:
    spec = template()["spec"]
    assert spec["terminationGracePeriodSeconds"] >= 600
    assert spec["containers"][0]["terminationMessagePolicy"] == "FallbackToLogsOnError"


def test_placement_labels_and_resources_reach_the_pod() -> None:
    pod = {
        "nodeSelector": {"gpu": "a"},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "priorityClassName": "high",
        "labels": {"team": "x"},
        "annotations": {"note": "y"},
        "env": [{"name": "A", "value": "1"}],
    }
    made = template(pod=pod, resources={"limits": {"nvidia.com/gpu": 1}})
    assert made["metadata"]["labels"]["team"] == "x"
    assert made["metadata"]["annotations"] == {"note": "y"}
    assert made["spec"]["nodeSelector"] == {"gpu": "a"}
    assert made["spec"]["tolerations"] == [{"key": "gpu", "operator": "Exists"}]
    assert made["spec"]["priorityClassName"] == "high"
    assert made["spec"]["containers"][0]["resources"] == {"limits": {"nvidia.com/gpu": "1"}}
    assert made["spec"]["containers"][0]["env"] == [{"name": "A", "value": "1"}]


def test_a_grace_of_ones_own_leaves_time_to_end_after_the_last_stream() -> None:
    def read(grace: int) -> tuple[int, list[str]]:
        pod = {"terminationGracePeriodSeconds": grace}
        return template(pod=pod)["spec"]["terminationGracePeriodSeconds"], arguments(pod=pod)

    assert read(630) == (630, [])
    assert read(3600) == (3600, ["--drain-seconds", "3570"])
    assert read(120) == (120, ["--drain-seconds", "90"])
    assert read(25) == (25, ["--drain-seconds", "12"])


def test_replicas_of_a_revision_are_spread() -> None:
    constraint = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "minDomains": 2}
    made = template(pod={"topologySpreadConstraints": [constraint]})
    (rendered,) = made["spec"]["topologySpreadConstraints"]
    counted = rendered.pop("labelSelector")["matchLabels"]
    assert rendered == constraint
    assert counted.items() <= made["metadata"]["labels"].items()
    assert {contract.LABEL_SERVICE, contract.LABEL_REVISION} <= counted.keys()


def test_secrets_and_the_runtime_class_reach_the_pod() -> None:
    spec = template(pod={"imagePullSecrets": [{"name": "registry"}], "runtimeClassName": "nvidia"})["spec"]
    assert (spec["imagePullSecrets"], spec["runtimeClassName"]) == ([{"name": "registry"}], "nvidia")


def test_an_account_of_ones_own_is_the_replicas_and_the_jobs() -> None:
    assert template()["spec"]["serviceAccountName"] == "chat-replica"
    service = make_service(pod={"serviceAccountName": "reads-buckets"}, model={"uri": "s3://models/chat"})
    service["metadata"]["uid"] = "u"
    spec = Spec.model_validate(service["spec"])
    job = render_resolve_job(SETTINGS, service, spec, "x")["spec"]["template"]["spec"]
    for pod in (template(pod={"serviceAccountName": "reads-buckets"})["spec"], job):
        assert pod["serviceAccountName"] == "reads-buckets"
        assert pod["automountServiceAccountToken"] is False, "a cloud's role needs none"
        assert pod["enableServiceLinks"] is False, "a namespace's Services are no variables of ours"


def test_the_container_uses_the_devices_that_the_pod_claims() -> None:
    claims = [
        {"name": "gpu", "resourceClaimTemplateName": "one-gpu", "request": "any"},
        {"name": "nic", "resourceClaimName": "shared"},
    ]
    spec = template(pod={"resourceClaims": claims}, parallelism={"tensor": 2})["spec"]
    assert spec["resourceClaims"] == [
        {"name": "gpu", "resourceClaimTemplateName": "one-gpu"},
        {"name": "nic", "resourceClaimName": "shared"},
    ]
    container = spec["containers"][0]
    assert container["resources"] == {"claims": [{"name": "gpu", "request": "any"}, {"name": "nic"}]}
    assert "/dev/shm" in [mount["mountPath"] for mount in container["volumeMounts"]]


def test_a_claim_is_of_one_origin() -> None:
    for claim in ({"name": "a"}, {"name": "a", "resourceClaimName": "b", "resourceClaimTemplateName": "c"}):
        with pytest.raises(ValueError, match="one of resourceClaimName and"):
            template(pod={"resourceClaims": [claim]})


def test_a_models_files_change_their_owner_once() -> None:
    assert template()["spec"]["securityContext"]["fsGroupChangePolicy"] == "OnRootMismatch"


def test_what_is_left_out_of_the_placement_is_not_written() -> None:
    assert not template()["spec"].keys() & {
        "nodeSelector", "tolerations", "priorityClassName", "runtimeClassName", "imagePullSecrets",
        "topologySpreadConstraints", "resourceClaims",
    }  # fmt: skip


def test_no_label_of_a_user_replaces_one_of_ours() -> None:
    labels = template(pod={"labels": {"millrace.dev/service": "other"}})["metadata"]["labels"]
    assert labels["millrace.dev/service"] == "chat"


def test_the_parents_labels_are_not_copied() -> None:
    service = make_service()
    service["metadata"] |= {"uid": "u", "labels": {"argocd.argoproj.io/instance": "app"}}
    child = render_child(service, SERVICE, "x")
    assert "argocd.argoproj.io/instance" not in child["metadata"]["labels"]


def test_the_services_own_name_is_the_gateways_alias() -> None:
    service = make_service()
    service["metadata"]["uid"] = "u"
    spec = render_service(SETTINGS, service)["spec"]
    assert (spec["type"], spec["externalName"]) == ("ExternalName", SETTINGS.gateway_service)
    assert render_headless_service(service)["spec"]["clusterIP"] == "None"


def test_the_url_has_a_port_only_when_it_is_not_80() -> None:
    assert SETTINGS.url("shop", "chat") == "http://chat.shop.svc.cluster.local:8080"
    assert RenderSettings().url("shop", "chat") == "http://chat.shop.svc.cluster.local"


def test_a_single_replica_does_not_hold_up_a_nodes_drain() -> None:
    service = make_service()
    service["metadata"]["uid"] = "u"
    assert render_disruption_budget(service, 1, holds_last=False)["spec"]["minAvailable"] == 0
    assert render_disruption_budget(service, 3, holds_last=False)["spec"]["minAvailable"] == 2
