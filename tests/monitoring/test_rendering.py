"""What the chart renders for monitoring: with the Prometheus operator's CRDs, without them, switched off."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from millrace_gateway.command import read_settings
from millrace_operator.api.access_types import Access
from millrace_operator.app.command import build_parser, read_render_settings
from millrace_runtime.contract import PORT_GATEWAY_METRICS, PORT_GATEWAY_PEERS
from tests.monitoring.chart import NAMESPACE, OPERATOR_API, ROOT, Manifests, render, run_helm

pytestmark = pytest.mark.slow
Programs = Mapping[str, Path]

MONITOR, RULE = ("PodMonitor", "millrace"), ("PrometheusRule", "millrace")
DASHBOARD = ("ConfigMap", "millrace-dashboard")


@pytest.mark.parametrize("name", ["operator", "runtime"])
def test_without_an_image_it_is_said_what_to_write(programs: Mapping[str, Path], name: str) -> None:
    done = run_helm(programs["helm"], "--set", f"images.{name}=")
    assert done.returncode != 0
    assert f"write --set images.{name}=REGISTRY/millrace/{name}:TAG" in done.stderr


def test_without_the_crds_a_plain_install_has_none_of_their_kinds(programs: Programs) -> None:
    manifests = render(programs["helm"])
    assert not {MONITOR, RULE} & set(manifests)
    assert DASHBOARD in manifests


def test_with_the_crds_there_is_one_monitor_of_all_namespaces_and_the_rules(programs: Programs) -> None:
    manifests = render(programs["helm"], *OPERATOR_API)
    kinds = [kind for kind, _ in manifests]
    assert (kinds.count("PodMonitor"), kinds.count("PrometheusRule")) == (1, 1)
    assert manifests[MONITOR]["spec"]["namespaceSelector"] == {"any": True}
    assert {end["interval"] for end in manifests[MONITOR]["spec"]["podMetricsEndpoints"]} == {"5s"}
    assert {manifests[name]["metadata"]["namespace"] for name in (MONITOR, RULE)} == {"millrace"}


def test_of_some_namespaces_alone_the_monitor_is_of_these_and_of_our_own(programs: Programs) -> None:
    manifests = render(programs["helm"], *OPERATOR_API, "--set", "namespaces={shop,search}")
    assert manifests[MONITOR]["spec"]["namespaceSelector"] == {"matchNames": ["shop", "search", "millrace"]}


@pytest.mark.parametrize(
    ("part", "gone"), [("podMonitor", MONITOR), ("rules", RULE), ("dashboard", DASHBOARD)]
)
def test_each_can_be_left_out(programs: Programs, part: str, gone: tuple[str, str]) -> None:
    manifests = render(programs["helm"], *OPERATOR_API, "--set", f"monitoring.{part}.enabled=false")
    assert {MONITOR, RULE, DASHBOARD} - set(manifests) == {gone}


def test_labels_by_which_a_prometheus_and_a_grafana_select_are_values(programs: Programs) -> None:
    labels = ["--set", "monitoring.labels.release=kps", "--set", "monitoring.dashboard.labels.folder=ml"]
    manifests = render(programs["helm"], *OPERATOR_API, *labels)
    for name in (MONITOR, RULE):
        assert manifests[name]["metadata"]["labels"]["release"] == "kps"
    found = manifests[DASHBOARD]["metadata"]["labels"]
    assert (found["grafana_dashboard"], found["folder"]) == ("1", "ml")


def test_the_rules_are_those_of_the_file_but_for_two_values(programs: Programs) -> None:
    """A Prometheus without its operator loads the file."""
    values = ["monitoring.rules.runbooks=https://wiki/r", "monitoring.rules.failureBudget=0.02"]
    words = [word for value in values for word in ("--set", value)]
    rendered = render(programs["helm"], *OPERATOR_API, *words)[RULE]["spec"]
    for group in rendered["groups"]:
        for rule in group["rules"]:
            if "alert" in rule:
                url = rule["annotations"].pop("runbook_url")
                assert url == f"https://wiki/r#{rule['alert'].lower()}"
            elif rule["record"] == "millrace_failure_budget:ratio":
                assert rule["expr"] == "vector(0.02)"
                rule["expr"] = "vector(0.001)"
    assert rendered == yaml.safe_load((ROOT / "charts/millrace/files/rules.yaml").read_text())


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ("monitoring.podMonitor.interval=5", "/monitoring/podMonitor/interval"),
        ("monitoring.rules.failureBudget=1", "/monitoring/rules/failureBudget"),
        ("monitoring.rules.failureBudget=0.0", "/monitoring/rules/failureBudget"),
        ("monitoring.labels.release=1", "/monitoring/labels/release"),
        ("monitoring.rule.enabled=false", "'rule' not allowed"),
        ("gateway.port=8092", "/gateway/port"),
        ("gateway.shortNames.chat=chat", "/gateway/shortNames/chat"),
        ("gateway.bodyMemory=1G", "/gateway/bodyMemory"),
        ("gateway.bodyMemory=15Mi", "/gateway/bodyMemory"),
    ],
)
def test_a_bad_value_is_refused_by_its_name(programs: Programs, setting: str, named: str) -> None:
    done = run_helm(programs["helm"], "--set", setting)
    assert done.returncode != 0
    assert named in done.stderr


def test_what_the_platform_says_of_names_reaches_the_gateway_and_the_operator(programs: Programs) -> None:
    values = (
        *("shortNames.chat=team-a/chat", "publicHosts={models.dev}", "forwardHeaders={baggage}"),
        *("shortHosts=true", "listAllModels=true", "bodyMemory=1Gi", "allowedOrigins={https://a.example:81}"),
    )
    rendered = render(programs["helm"], *(word for value in values for word in ("--set", f"gateway.{value}")))
    gateway, operator = (read_flags(rendered, name) for name in ("gateway", "operator"))
    settings, pins = read_settings(gateway), {"chat": ("team-a", "chat")}
    assert settings.allowed_origins == ("https://a.example:81",)
    assert (settings.short_names, settings.public_hosts, settings.forward_headers) == (
        pins,
        {"models.dev"},
        ("baggage",),
    )
    assert (settings.short_hosts, settings.list_all_models, settings.body_memory_bytes) == (True, True, 2**30)
    assert build_parser().parse_args(operator).short_name == [("chat", "team-a", "chat")]
    plain = read_settings(read_flags(render(programs["helm"]), "gateway"))
    assert (plain.short_hosts, plain.list_all_models, plain.metrics_port) == (False, False, 8092)
    ports = rendered["Deployment", "millrace-gateway"]["spec"]["template"]["spec"]["containers"][0]["ports"]
    assert {port["name"]: port["containerPort"] for port in ports} == {
        "http": 8080,
        "metrics": 8092,
        "peers": 8093,
    }


ACCESS = {
    "access": {
        "authentication": {"mode": "APIKey", "secretName": "clients"},
        "rateLimits": [
            {"per": "Key", "tokensPerMinute": 1_000_000_000_000},
            {"per": "Service", "concurrency": 8},
        ],
    },
    "secretNamespaces": ["team-a", NAMESPACE],
}


def test_who_may_use_services_reaches_operator_and_gateway(programs: Programs) -> None:
    rendered = render(programs["helm"], "--set-json", f"gateway={json.dumps(ACCESS)}")
    settings = read_render_settings(build_parser().parse_args(read_flags(rendered, "operator"))).access
    assert settings.access == Access.model_validate(ACCESS["access"])
    assert (settings.can_read("team-a"), settings.can_read("team-b")) == (True, False)
    gateway = read_flags(rendered, "gateway")
    assert json.loads(gateway[gateway.index("--default-access") + 1]) == ACCESS["access"]
    assert gateway[gateway.index("--secret-namespaces") + 1] == f"team-a,{NAMESPACE}"
    documents = run_helm(programs["helm"], "--set-json", f"gateway={json.dumps(ACCESS)}").stdout
    assert documents.count("name: millrace-gateway-secrets\n  namespace: team-a") == 2
    assert documents.count("name: millrace-gateway-secrets") == 3, "its own namespace is in its Role already"


@pytest.mark.parametrize("values", ["authentication.mode=APIKey", "authentication.secretName=clients"])
def test_keys_need_a_secret_and_a_secret_is_for_keys(programs: Programs, values: str) -> None:
    done = run_helm(programs["helm"], "--set", f"gateway.access.{values}")
    assert done.returncode != 0
    assert "secretName" in done.stderr


@pytest.mark.parametrize("values", [(), ("--set", "gateway.access=null,gateway.secretNamespaces=null")])
def test_without_a_word_of_access_no_flag_is_passed(programs: Programs, values: tuple[str, ...]) -> None:
    """As with --reuse-values of a release from before."""
    words = read_flags(render(programs["helm"], *values), "operator")
    assert not {"--default-access", "--secret-namespaces"} & set(words)


def read_flags(rendered: Manifests, component: str) -> list[str]:
    [container] = rendered["Deployment", f"millrace-{component}"]["spec"]["template"]["spec"]["containers"]
    words: list[str] = container["args"]
    assert words[0] == component
    return words[1:]


def test_strangers_reach_every_port_of_a_gateway_but_the_gateways_own(programs: Programs) -> None:
    manifests = render(programs["helm"], "--set", "gateway.port=9000")
    pod = manifests["Deployment", "millrace-gateway"]["spec"]["template"]
    policy = manifests["NetworkPolicy", "millrace-gateway"]["spec"]
    is_gateway = {"matchLabels": pod["metadata"]["labels"]}
    assert policy["podSelector"] == is_gateway
    for_clients, for_metrics, for_gateways = policy["ingress"]
    assert for_gateways == {"from": [{"podSelector": is_gateway}], "ports": [{"port": PORT_GATEWAY_PEERS}]}
    container = pod["spec"]["containers"][0]
    ports = {port["containerPort"] for port in container["ports"]} - {PORT_GATEWAY_PEERS}
    assert [for_clients, for_metrics] == [{"ports": [{"port": port}]} for port in sorted(ports, reverse=True)]
    assert ports == {9000, PORT_GATEWAY_METRICS}


def test_metrics_can_be_left_to_prometheus_and_the_operator(programs: Programs) -> None:
    peer = '[{"namespaceSelector":{"matchLabels":{"name":"monitoring"}}}]'
    rendered = render(programs["helm"], "--set-json", f"gateway.metricsFrom={peer}")
    _, for_metrics, _ = rendered["NetworkPolicy", "millrace-gateway"]["spec"]["ingress"]
    operator = {"podSelector": {"matchLabels": {"millrace.dev/component": "operator"}}}
    assert for_metrics == {"ports": [{"port": PORT_GATEWAY_METRICS}], "from": [operator, *json.loads(peer)]}


@pytest.mark.parametrize("peer", ['{"namespaceSelector":{"x":1}}', '{"podSelector":{},"ipBlock":{}}', "{}"])
def test_a_peer_that_kubernetes_would_misread_is_refused(programs: Programs, peer: str) -> None:
    done = run_helm(programs["helm"], "--set-json", f"gateway.metricsFrom=[{peer}]")
    assert done.returncode != 0
    assert "metricsFrom" in done.stderr


@pytest.mark.parametrize(("value", "is_there"), [("false", False), ("null", True)])
def test_a_cluster_with_policies_of_its_own_needs_none(
    programs: Programs, value: str, *, is_there: bool
) -> None:
    """An upgrade with --reuse-values has no value: then there is one, as before."""
    rendered = render(programs["helm"], "--set", f"gateway.networkPolicy={value}")
    assert (("NetworkPolicy", "millrace-gateway") in rendered) == is_there
