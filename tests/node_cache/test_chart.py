"""The chart's node cache, as far as it can be checked without Helm."""

import re
from pathlib import Path

import yaml

from millrace_node_cache.command import read_settings
from millrace_node_cache.plan import parse_limit
from millrace_runtime import contract

CHART = Path(__file__).resolve().parents[2] / "charts" / "millrace"
TEMPLATE = (CHART / "templates" / "node-cache.yaml").read_text()
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())["nodeCache"]


def test_it_is_asked_for_by_flags_that_there_are() -> None:
    flags = re.findall(r"- (--[\w-]+)", TEMPLATE)
    given = dict.fromkeys(flags, "x") | {"--limit": VALUES["limit"]}
    settings = read_settings(["--node", "n", *(word for pair in given.items() for word in pair)])
    assert settings.limit == parse_limit("80%")
    assert settings.port == contract.PORT_NODE_CACHE
    assert TEMPLATE.count(f"port: {settings.port}") == 2


def test_the_names_are_those_that_operator_and_pods_rely_on() -> None:
    assert f'"claim" "{contract.CLAIM_KEPT}"' in TEMPLATE
    assert f'"name" (printf "{contract.VOLUME_KEPT}%s" $namespace)' in TEMPLATE
    assert set(re.findall(r"startsWith\('(.*?)'\)", TEMPLATE)) == {contract.LABEL_KEPT_ON_NODE}


def test_it_may_list_pods_and_label_nodes_and_no_more() -> None:
    assert re.findall(r"resources: \[(.*)\]\n  verbs: \[(.*)\]", TEMPLATE) == [
        ("nodes", "get, patch"),
        ("pods", "list"),
    ]
    assert "hostPath:" not in TEMPLATE
