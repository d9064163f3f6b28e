"""Public names are in the docs, each of them, and what the docs name exists."""

import importlib
import json
import re
import socket
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from e2e.cluster.local_cluster import LocalCluster
from millrace_gateway.access.usage import UsageBook
from millrace_gateway.access.usage_metrics import UsageCollector
from millrace_gateway.report.metrics import Metrics as GatewayMetrics
from millrace_gateway.route.objects import ServiceChanges, ServiceKey
from millrace_kubectl import command as plugin
from millrace_node_cache.metrics import Metrics as NodeCacheMetrics
from millrace_operator.api.conditions import Reason
from millrace_operator.api.types import Spec
from millrace_operator.app.metrics import Metrics as OperatorMetrics
from millrace_operator.autoscaler.decide.decision import BINDINGS
from millrace_operator.autoscaler.decide.decision import Reason as ScalingReason
from millrace_operator.autoscaler.run import prior_store
from millrace_operator.controller.queue import WorkQueue
from millrace_runtime import contract
from millrace_runtime.api.engine_client import EngineClient
from millrace_runtime.api.metrics import ReplicaMetrics
from millrace_runtime.protocol.messages import EngineReady
from millrace_runtime.protocol.step import Placement
from millrace_runtime.replica import probe_server
from tests.operator.app.test_service_metrics import make_collector

ROOT = Path(__file__).resolve().parents[2]
DOC_PAGES = sorted((ROOT / "docs").rglob("*.md"))
DOCS = {path.name: path.read_text() for path in DOC_PAGES}
README = ROOT / "README.md"
FIGURES = ROOT / "benchmarks" / "README.md"
PAGES = [
    *DOC_PAGES,
    *(README, *(ROOT / f"{name}.md" for name in ("CONTRIBUTING", "CHANGELOG", "SECURITY"))),
    *(path for folder in ("benchmarks", "kernels") for path in (ROOT / folder).rglob("*.md")),
]
"""All that people read, less the model card, whose samples are long lines."""
MODULES = {
    "serve": "millrace_runtime.replica.command",
    "operator": "millrace_operator.app.command",
    "gateway": "millrace_gateway.command",
    "node-cache": "millrace_node_cache.command",
    "fetch": "millrace_fetch.cli.command",
    "size": "millrace_fetch.cli.size",
}
PLACEMENT = Placement("cpu", "avx2", "float32", "FromCheckpoint", 1)
SOURCES = ("operator", "runtime", "kernels", "charts", "images", "benchmarks", "development", "e2e", "tests")
INSIDE_PAGES = [
    page
    for page in DOC_PAGES
    if page.name == "architecture.md" or page.parent.name in ("design", "decisions")
]
"""The pages on how Millrace works and why: they name its files."""


def sections(page: str) -> dict[str, str]:
    """The text under each `##` heading."""
    parts = re.split(r"^## (.+)$", DOCS[page], flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def rows(text: str) -> dict[str, str]:
    """Table rows by each name in backticks in their first cell."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        if line.startswith("| "):
            first = line.split("|")[1]
            found |= dict.fromkeys(re.findall(r"`([^`]+)`", first), line)
    return found


def field_paths(schema: dict[str, Any], path: str) -> Iterator[str]:
    yield path
    if "items" in schema:
        yield from list(field_paths(schema["items"], f"{path}[]"))[1:]
    for name, field in schema.get("properties", {}).items():
        yield from field_paths(field, f"{path}.{name}")


def crd_paths() -> set[str]:
    crd = yaml.safe_load((ROOT / "crds" / "inferenceservices.yaml").read_text())
    properties = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    return {path for part in ("spec", "status") for path in field_paths(properties[part], part)}


def chart_values(values: dict[str, Any], path: str = "") -> Iterator[str]:
    for name, value in values.items():
        if isinstance(value, dict) and name not in (
            "resources",
            "labels",
            "resourceHours",
            "runtimeVersions",
            "nodeSelector",
            "shortNames",
            "access",
        ):
            yield from chart_values(value, f"{path}{name}.")
        else:
            yield f"{path}{name}"


def exposed(families: Iterator[Metric]) -> dict[str, Metric]:
    """Families by their names as Prometheus scrapes them."""
    return {f"{f.name}_total" if f.type == "counter" else f.name: f for f in families}


def replica_families() -> dict[str, Metric]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        engine = EngineClient(ours)
        engine.ready = EngineReady(1, 1, 16, 16, 1, 1, PLACEMENT, {"imports": 0.0})
        metrics = ReplicaMetrics(engine, "model")
        metrics.rejected["overloaded"] += 1
        return exposed(metrics.collect())


def gateway_families() -> dict[str, Metric]:
    metrics = GatewayMetrics()
    metrics.track(ServiceChanges(added=[ServiceKey("namespace", "service")]))
    metrics.add_collector(UsageCollector(UsageBook(0.0), float))
    return exposed(text_string_to_metric_families(metrics.render().decode()))


def operator_families() -> dict[str, Metric]:
    metrics = OperatorMetrics()
    metrics.count_request("GET", 200)
    metrics.count_reconcile("error", 0.1)
    metrics.follow(WorkQueue(), float, "lease", bool)
    metrics.registry.register(make_collector())
    return exposed(metrics.registry.collect())  # type: ignore[arg-type]


def node_cache_families() -> dict[str, Metric]:
    return exposed(NodeCacheMetrics().registry.collect())  # type: ignore[arg-type]


@cache
def paths_of_the_repository() -> tuple[str, ...]:
    """Every folder, with a slash at its end, and every Python file below the sources."""
    found = [path for folder in SOURCES for path in (ROOT / folder).rglob("*")]
    folders = [
        f"/{path.relative_to(ROOT).as_posix()}/" for path in [*ROOT.iterdir(), *found] if path.is_dir()
    ]
    return (*folders, *(f"/{path.relative_to(ROOT).as_posix()}" for path in found if path.suffix == ".py"))


def test_every_field_of_the_resource_has_a_row_and_no_row_is_of_a_field_that_is_gone() -> None:
    text = sections("resource.md")
    assert set(rows(text["spec"])) | set(rows(text["status"])) == crd_paths()


def test_every_reason_and_binding_is_explained() -> None:
    text = sections("resource.md")
    assert {str(reason) for reason in Reason} == set(rows(text["Conditions"].partition("| reason |")[2]))
    scaling = rows(text["Reasons and bindings of status.scaling"])
    assert {str(reason) for reason in ScalingReason} | set(BINDINGS) <= set(scaling)


@pytest.mark.parametrize(
    ("title", "port", "families"),
    [
        ("Replica", contract.PORT_HTTP, replica_families()),
        ("Gateway", contract.PORT_GATEWAY_METRICS, gateway_families()),
        ("Operator", contract.PORT_OPERATOR_METRICS, operator_families()),
        ("Node cache", contract.PORT_NODE_CACHE, node_cache_families()),
    ],
    ids=["replica", "gateway", "operator", "node cache"],
)
def test_every_metric_has_a_row_with_its_type_and_labels(
    title: str, port: int, families: dict[str, Metric]
) -> None:
    section = sections("metrics.md")[title]
    assert section.lstrip().startswith(f"Port {port}")
    documented = rows(section)
    assert set(families) == {name for name in documented if name != "model_name"}
    for name, family in families.items():
        assert f"| {family.type} |" in documented[name]
        labels = {label for sample in family.samples for label in sample.labels} - {"le", "model_name"}
        for label in labels:
            assert f"`{label}`" in documented[name], name


@pytest.mark.parametrize("name", MODULES)
def test_every_flag_has_a_row_and_no_row_is_of_a_flag_that_is_gone(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")  # a narrow help breaks flags at their hyphens
    with pytest.raises(SystemExit):
        importlib.import_module(MODULES[name]).main(["--help"])
    flags = set(re.findall(r"--[a-z][a-z-]*", capsys.readouterr().out)) - {"--help"}
    assert flags
    assert flags == set(rows(sections("commands.md")[f"millrace {name}"]))


def test_every_flag_of_the_plugin_has_a_row(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    flags: set[str] = set()
    for words in (*((name,) for name in plugin.SUB_COMMANDS), ("key", "create"), ("key", "revoke")):
        with pytest.raises(SystemExit):
            plugin.run([*words, "--help"])
        flags |= set(re.findall(r"--[a-z][a-z-]*", capsys.readouterr().out))
    named = rows(sections("commands.md")["kubectl millrace"])
    assert flags - {"--help"} == {name for name in named if name.startswith("--")}
    assert set(plugin.SUB_COMMANDS) == {name.split()[0] for name in named if name[0].islower()}


def test_every_chart_value_has_a_row_and_no_row_is_of_a_value_that_is_gone() -> None:
    values = yaml.safe_load((ROOT / "charts" / "millrace" / "values.yaml").read_text())
    assert set(rows(DOCS["chart.md"])) == set(chart_values(values))


def test_every_name_of_the_contract_has_a_row_with_its_value() -> None:
    documented = rows(DOCS["contract.md"])
    names = {name: value for name, value in vars(contract).items() if name.isupper()}
    assert set(names) == set(documented)
    for name, value in names.items():
        if isinstance(value, str | int):
            assert re.search(rf"(?<![\w-]){re.escape(str(value))}(?![\w-])", documented[name]), name


@pytest.mark.parametrize("page", INSIDE_PAGES, ids=lambda page: page.name)
def test_every_file_and_folder_that_a_page_on_the_inside_names_exists(page: Path) -> None:
    named = set(re.findall(r"`([\w-][\w./-]*(?:/|\.py))`", page.read_text()))
    missing = {n for n in named if not any(p.endswith(f"/{n}") for p in paths_of_the_repository())}
    assert not missing


def test_every_package_has_a_row_in_the_architecture() -> None:
    found = set(re.findall(r"^\| `([^`]+)/`", sections("architecture.md")["Where is what"], re.MULTILINE))
    roots = [path for name in ("operator", "runtime", "kernels") for path in (ROOT / name).iterdir()]
    packages = {path.relative_to(ROOT).as_posix() for path in roots if (path / "__init__.py").exists()}
    assert not {package for package in packages if not any(row.startswith(package) for row in found)}
    rooms = {path.parent for path in (ROOT / "operator/millrace_operator").glob("*/__init__.py")}
    rows_of_rooms = {row.removeprefix("operator/millrace_operator/").split("/")[0] for row in found}
    assert {room.name for room in rooms} <= rows_of_rooms


def test_no_path_has_two_rows_in_the_architecture() -> None:
    named = re.findall(r"^\| `([^`]+)`", sections("architecture.md")["Where is what"], re.MULTILINE)
    assert "tests/" in named
    assert not {path for path in named if named.count(path) > 1}


def test_the_limits_of_livez_are_those_that_are_written() -> None:
    text = " ".join(sections("commands.md")["millrace serve"].split())
    assert f"A client has {probe_server.REQUEST_SECONDS:g} s for its request and the answer." in text
    assert f"If more than {probe_server.MAX_WAITING} connections wait without a request, the oldest" in text


def named_metrics(text: str) -> set[str]:
    """Every metric of a replica or the gateway that a text names, without a histogram's endings."""
    names = re.findall(r"\b(?:vllm:\w+|millrace:\w+|millrace_gateway_\w+)", text)
    return {re.sub(r"_(bucket|sum|count)$", "", name) for name in names}


def linked_pages(page: Path) -> set[Path]:
    targets = re.findall(r"\]\((?!\w+:)([^)#]+\.md)", page.read_text())
    return {(page.parent / target).resolve() for target in targets}


@pytest.mark.parametrize("page", DOC_PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_page_is_at_most_three_links_from_the_readme(page: Path) -> None:
    near = {README}
    for _ in range(3):
        near |= {linked for known in near for linked in linked_pages(known)}
    assert page in near


def test_the_how_tos_explain_every_reason_of_the_autoscaler_and_name_no_other() -> None:
    found = re.findall(r"^\| `(\w+)`", DOCS["objectives.md"], re.MULTILINE)
    assert {*map(str, ScalingReason), "External", "Bounds", "Pinned"} == set(found)


def test_the_page_searches_the_log_for_a_word_of_its_lines_about_the_learned_model() -> None:
    (word,) = re.findall(r"component=operator --tail=-1 \| grep '(.+)'", DOCS["it-does-not-scale.md"])
    lines = (prior_store.UNREADABLE, prior_store.UNUSABLE, prior_store.OTHER_ACCELERATOR)
    assert all(word in line for line in lines)


@pytest.mark.parametrize("page", DOC_PAGES, ids=lambda page: page.name)
def test_every_metric_that_a_page_names_exists(page: Path) -> None:
    families = {*replica_families(), *gateway_families()}
    known = families | {name.removesuffix("_total") for name in families}
    assert named_metrics(page.read_text()) <= known


def written_paths(value: Any, schema: dict[str, Any], path: str) -> Iterator[str]:
    """The path of every field in `value`; the keys of a map that may have any are left out."""
    yield path
    if "items" in schema:
        for item in value:
            yield from list(written_paths(item, schema["items"], f"{path}[]"))[1:]
    elif isinstance(value, dict) and "additionalProperties" not in schema:
        for name, field in value.items():
            yield from written_paths(field, schema.get("properties", {}).get(name, {}), f"{path}.{name}")


def written_services() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every whole InferenceService in a page's YAML, with the page's name."""
    for page in PAGES:
        for block in re.findall(r"^```yaml\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
            for document in yaml.safe_load_all(block):
                if document.get("kind") == contract.KIND:
                    yield page.name, document


@pytest.mark.parametrize(("page", "service"), [*written_services()])
def test_every_service_written_in_a_page_is_one_that_the_operator_reads(
    page: str, service: dict[str, Any]
) -> None:
    Spec.model_validate(service["spec"])
    crd = yaml.safe_load((ROOT / "crds" / "inferenceservices.yaml").read_text())
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    assert set(written_paths(service["spec"], schema, "spec")) <= crd_paths(), page


def anchors(page: Path) -> set[str]:
    """What a link to a heading of this page may name."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_lines_are_short_and_links_lead_somewhere(page: Path) -> None:
    text = page.read_text()
    row = re.compile(r"\| `?[\w-]+`? \|")
    rows_of_a_run = {line for line in text.splitlines() if page == FIGURES and row.match(line)}
    assert not [line for line in text.splitlines() if len(line) > 120 and line not in rows_of_a_run]
    for target, heading in re.findall(r"\]\((?!\w+:)([^)#]*)(?:#([\w-]+))?\)", text):
        there = (page.parent / target).resolve() if target else page
        assert there.exists(), target
        assert not heading or heading in anchors(there), f"{target}#{heading}"


def test_what_ends_the_cluster_is_shown_in_its_order(tmp_path: Path) -> None:
    """Parts are ended in the reverse of the order in which they start."""
    ended = ", ".join(reversed(LocalCluster(tmp_path).part_names))
    assert f"\ndown: ended {ended}\n" in DOCS["get-started.md"]


def test_each_client_has_its_locked_version() -> None:
    folder = ROOT / "tests" / "clients"
    locked = (folder / "requirements.txt").read_text().splitlines()
    versions = dict(line.split(" ;")[0].split("==") for line in locked)
    versions |= json.loads((folder / "package.json").read_text())["dependencies"]
    documented = rows(sections("requests.md")["Clients"])
    assert documented
    for name, row in documented.items():
        assert f"| {versions[name]} |" in row, name
