"""Queries of the dashboard and of the rules name only metrics that exist. No Grafana reads it here."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
import yaml

from tests.monitoring.chart import CHART, ROOT, render
from tests.monitoring.incidents import RULES
from tests.monitoring.prometheus_process import run_prometheus

pytestmark = pytest.mark.slow
DASHBOARD = json.loads((CHART / "files" / "dashboard.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
GROUPS = yaml.safe_load(RULES.read_text())["groups"]
VARIABLES = {"$namespace": "shop", "$service": "chat", "$__rate_interval": "1m"}


def known_metrics() -> set[str]:
    """Names that docs/metrics.md has, those of histograms with their endings, and those that rules record."""
    found = {rule["record"] for group in GROUPS for rule in group["rules"] if "record" in rule}
    for line in (ROOT / "docs" / "metrics.md").read_text().splitlines():
        if named := re.match(r"\| `([\w:]+)` \| (counter|gauge|histogram) \|", line):
            name, kind = named.groups()
            endings = ("_bucket", "_sum", "_count") if kind == "histogram" else ("",)
            found |= {f"{name}{ending}" for ending in endings}
    return found


def selected(node: Any) -> Iterator[dict[str, Any]]:
    """Every selector of a parsed query."""
    if isinstance(node, list):
        for part in node:
            yield from selected(part)
    elif isinstance(node, dict):
        if node.get("type") in {"vectorSelector", "matrixSelector"}:
            yield node
        for part in node.values():
            yield from selected(part)


def matched(selector: dict[str, Any]) -> dict[str, str]:
    return {matcher["name"]: matcher["value"] for matcher in selector["matchers"]}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def url(programs: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    folder = tmp_path_factory.mktemp("prometheus")
    async with run_prometheus(programs["prometheus"], folder, {}) as address:
        yield address


async def parse(url: str, queries: list[str]) -> list[Any]:
    """What Prometheus makes of each query. Raises AssertionError for one that it refuses."""
    trees = []
    async with aiohttp.ClientSession() as http, asyncio.timeout(60):
        for query in queries:
            answer = await http.get(f"{url}/api/v1/parse_query", params={"query": query})
            body = await answer.json()
            assert body["status"] == "success", (query, body)
            trees.append(body["data"])
    return trees


def fill(query: str) -> str:
    for name, value in VARIABLES.items():
        query = query.replace(name, value)
    assert "$" not in query, query
    return query


@pytest.mark.asyncio(loop_scope="module")
async def test_every_panel_asks_for_one_service_s_metrics_that_exist(url: str) -> None:
    queries = [fill(target["expr"]) for panel in PANELS for target in panel["targets"]]
    assert len(queries) > 50
    for query, tree in zip(queries, await parse(url, queries), strict=True):
        selectors = list(selected(tree))
        assert selectors, query
        for selector in selectors:
            assert selector["name"] in known_metrics(), query
            if selector["name"] != "millrace_failure_budget:ratio":
                found = matched(selector)
                assert (found.get("namespace"), found.get("service")) == ("shop", "chat"), query


@pytest.mark.asyncio(loop_scope="module")
async def test_every_rule_asks_for_metrics_that_exist(url: str) -> None:
    queries = [rule["expr"] for group in GROUPS for rule in group["rules"]]
    for query, tree in zip(queries, await parse(url, queries), strict=True):
        assert {selector["name"] for selector in selected(tree)} <= known_metrics(), query


def test_every_variable_is_one_that_a_query_uses_and_asks_for_a_metric_that_exists() -> None:
    variables = {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}
    assert set(variables) == {"datasource", "namespace", "service"}
    for name in ("namespace", "service"):
        asked = re.fullmatch(r"label_values\(([\w:]+)(\{.*\})?, (\w+)\)", variables[name]["query"]["query"])
        assert asked is not None
        assert (asked[1] in known_metrics(), asked[3]) == (True, name)


def test_panels_have_what_grafana_s_schema_asks_for_and_do_not_overlap() -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    assert all({"title", "type", "gridPos"} <= panel.keys() for panel in DASHBOARD["panels"])
    for panel in PANELS:
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        references = [target["refId"] for target in panel["targets"]]
        assert len(set(references)) == len(references), panel["title"]
    places = sorted((panel["gridPos"] for panel in DASHBOARD["panels"]), key=lambda p: (p["y"], p["x"]))
    for left, right in pairwise(places):
        ends = left["x"] + left["w"]
        assert ends <= 24
        assert right["x"] >= ends if right["y"] == left["y"] else right["y"] >= left["y"] + left["h"]


def test_the_configmap_holds_the_file(programs: Mapping[str, Path]) -> None:
    data = render(programs["helm"])[("ConfigMap", "millrace-dashboard")]["data"]
    assert json.loads(data["millrace.json"]) == DASHBOARD


def test_the_runbooks_name_panels_and_rows_that_exist() -> None:
    titles = {panel["title"] for panel in DASHBOARD["panels"]}
    text = (ROOT / "docs" / "runbooks.md").read_text()
    named = set(re.findall(r"(?:row|panel)\s+\*([^*]+)\*", text)) | set(
        re.findall(r"look at \*([^*]+)\*", text)
    )
    assert named
    assert named <= titles
