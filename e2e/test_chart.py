"""What the chart renders is what the operator reads. Helm alone: no cluster is needed."""

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.cluster.product import IMAGES
from millrace_operator.app.command import DEFAULT_URL, build_parser
from millrace_operator.autoscaler.run.settings import PrometheusSettings, read_prometheus


def render(programs: Mapping[str, Path], values: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """What Helm makes of values below `prometheus`."""
    chart = Path(__file__).resolve().parents[1] / "charts" / "millrace"
    chosen = [
        word
        for name, value in values.items()
        for word in ("--set" if value == "true" else "--set-literal", f"prometheus.{name}={value}")
    ]
    words = [str(programs["helm"]), "template", "m", str(chart), "--show-only", "templates/operator.yaml"]
    return subprocess.run([*words, *IMAGES, *chosen], capture_output=True, text=True, check=False)


def read_flags(words: list[str]) -> PrometheusSettings:
    """How the operator would ask Prometheus with these arguments."""
    arguments = build_parser().parse_args(words)
    return read_prometheus(arguments.prometheus_url, arguments)


def render_operator(
    programs: Mapping[str, Path], values: Mapping[str, str]
) -> tuple[list[str], dict[str, Any]]:
    """The operator's arguments as the chart renders them, and what is mounted at which folder."""
    done = render(programs, values)
    assert not done.returncode, done.stderr
    objects = {obj["kind"]: obj for obj in yaml.safe_load_all(done.stdout)}
    pod = objects["Deployment"]["spec"]["template"]["spec"]
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    container = pod["containers"][0]
    return container["args"], {
        mount["mountPath"]: volumes[mount["name"]] for mount in container["volumeMounts"]
    }


def test_the_chart_gives_the_operator_its_credentials_as_files_that_are_mounted(
    programs: Mapping[str, Path],
) -> None:
    values = {
        "url": "https://prometheus.example:9091",
        "matchers": 'cluster="eu",env=~"a|b"',
        "tenant": "team a",
        "basicAuthSecret": "pair",
        "headersSecret": "headers",
        "caConfigMap": "openshift-service-ca.crt",
        "caKey": "service-ca.crt",
        "clientCertificateSecret": "own",
    }
    arguments, mounted = render_operator(programs, values)
    settings = read_flags(arguments[1:])
    assert (settings.matchers, settings.tenant) == (values["matchers"], values["tenant"])
    files = {name: path for name, path in vars(settings).items() if isinstance(path, Path)}
    assert set(files) == {
        "username_file", "password_file", "headers_file", "ca_file", "certificate_file", "key_file"
    }  # fmt: skip
    sources = {name: mounted[str(path.parent)] for name, path in files.items()}
    assert sources["password_file"]["secret"]["secretName"] == "pair"
    assert sources["key_file"]["secret"]["secretName"] == "own"
    assert sources["ca_file"]["configMap"]["name"] == "openshift-service-ca.crt"
    assert files["ca_file"].name == "service-ca.crt"


@pytest.mark.parametrize(
    ("values", "token"),
    [
        ({"tokenSecret": "own"}, "/etc/millrace/prometheus/token/token"),
        ({"serviceAccountToken": "true"}, "/var/run/secrets/kubernetes.io/serviceaccount/token"),
    ],
)
def test_a_token_is_a_secrets_or_that_of_the_service_account(
    programs: Mapping[str, Path], values: Mapping[str, str], token: str
) -> None:
    url = {"url": "https://prometheus.example:9091", "insecureSkipVerify": "true"}
    arguments, mounted = render_operator(programs, {**url, **values})
    settings = read_flags(arguments[1:])
    assert (str(settings.token_file), settings.is_insecure) == (token, True)
    if "tokenSecret" in values:
        assert mounted[str(Path(token).parent)]["secret"]["secretName"] == "own"


def test_two_kinds_of_credentials_are_refused(programs: Mapping[str, Path]) -> None:
    said = render(programs, {"tokenSecret": "own", "basicAuthSecret": "pair"}).stderr
    assert "set one of prometheus.tokenSecret, prometheus.serviceAccountToken and" in said


def test_without_credentials_the_chart_mounts_none(programs: Mapping[str, Path]) -> None:
    arguments, mounted = render_operator(programs, {})
    settings = read_flags(arguments[1:])
    assert settings == PrometheusSettings(DEFAULT_URL)
    assert set(mounted) == {"/tmp"}


def render_node_cache(programs: Mapping[str, Path], *values: str) -> list[dict[str, Any]]:
    """What Helm makes of a node cache for one namespace, with these values below `nodeCache`."""
    chart = Path(__file__).resolve().parents[1] / "charts" / "millrace"
    words = [str(programs["helm"]), "template", "m", str(chart), "--show-only", "templates/node-cache.yaml"]
    chosen = [word for value in ("namespaces={team}", *values) for word in ("--set", f"nodeCache.{value}")]
    done = subprocess.run([*words, *IMAGES, *chosen], capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    return [obj for obj in yaml.safe_load_all(done.stdout) if obj]


@pytest.mark.parametrize(
    ("values", "group"),
    [
        ((), {"kubernetes.io/os": "linux"}),
        (("nodeSelector.pool=gpu", "nodeSelector.zone=a"), {"pool": "gpu", "zone": "a"}),
    ],
)
def test_a_group_of_nodes_keeps_models_and_no_other(
    programs: Mapping[str, Path], values: tuple[str, ...], group: dict[str, str]
) -> None:
    """The volumes are of the group, so a pod that asks for them goes to its nodes; the agent is there too."""
    objects = render_node_cache(programs, *values)
    (agent,) = [obj for obj in objects if obj["kind"] == "DaemonSet"]
    assert agent["spec"]["template"]["spec"]["nodeSelector"] == group
    volumes = [obj for obj in objects if obj["kind"] == "PersistentVolume"]
    assert {volume["metadata"]["name"] for volume in volumes} >= {
        "millrace-node-cache",
        "millrace-models-team",
    }
    for volume in volumes:
        (term,) = volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"]
        rules = {rule["key"]: (rule["operator"], rule["values"]) for rule in term["matchExpressions"]}
        assert rules == {key: ("In", [value]) for key, value in group.items()}
