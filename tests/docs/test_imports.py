"""docs/architecture.md draws the layers of [tool.importlinter] and names its other rules."""

import re
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
CONTRACTS: list[dict[str, Any]] = PROJECT["tool"]["importlinter"]["contracts"]
LAYERED = [contract for contract in CONTRACTS if contract["type"] == "layers"]
OTHERS = [contract for contract in CONTRACTS if contract["type"] != "layers"]


def read_section() -> str:
    page = (ROOT / "docs" / "architecture.md").read_text()
    return page.partition("### Who imports whom\n")[2].partition("\n## ")[0]


class Rule(NamedTuple):
    """A rule's names, by what it says of them."""

    importers: frozenset[str]
    verb: str
    imported: frozenset[str] = frozenset()
    excepted: frozenset[str] = frozenset()


def read_rule(text: str) -> Rule:
    """`A` and `B` may not import `C`. Excepted is `D`."""
    told, _, excepted = text.partition("Excepted")
    found = re.search(r"may\s+not\s+import|may\s+import|imports\s+the\s+other", told)
    assert found, f"no verb in: {text}"
    names = [told[: found.start()], told[found.end() :], excepted]
    importers, imported, exceptions = (frozenset(re.findall(r"`([^`]+)`", part)) for part in names)
    return Rule(importers, " ".join(found[0].split()), imported, exceptions)


def read_rules() -> dict[str, Rule]:
    """The rules in the list, by their names."""
    rules = re.findall(r"^- \*\*(.+?)\.\*\*(.+?)(?=\n- |\n\n)", read_section(), re.MULTILINE | re.DOTALL)
    return {name: read_rule(text) for name, text in rules}


def name_exceptions(ignored: Iterable[str]) -> frozenset[str]:
    """The modules that a rule excepts: the one imported where everybody may import it, else the importer."""
    pairs = [line.split(" -> ") for line in ignored]
    return frozenset(imported if importer.endswith(".**") else importer for importer, imported in pairs)


def rule_of(contract: dict[str, Any]) -> Rule:
    excepted = name_exceptions(contract.get("ignore_imports", ()))
    if contract["type"] == "independence":
        return Rule(frozenset(contract["modules"]), "imports the other", excepted=excepted)
    if contract["type"] == "protected":
        allowed, protected = contract["allowed_importers"], contract["protected_modules"]
        return Rule(frozenset(allowed), "may import", frozenset(protected), excepted)
    sources, forbidden = contract["source_modules"], contract["forbidden_modules"]
    return Rule(frozenset(sources), "may not import", frozenset(forbidden), excepted)


def test_the_drawn_layers_are_those_that_are_checked() -> None:
    drawn = re.findall(r"^```\n(.*?)\n```$", read_section(), re.MULTILINE | re.DOTALL)
    assert drawn == ["\n".join(contract["layers"]) for contract in LAYERED]


@pytest.mark.parametrize("contract", OTHERS, ids=lambda contract: contract["name"])
def test_every_rule_is_told_with_all_its_names(contract: dict[str, Any]) -> None:
    assert read_rules()[contract["name"]] == rule_of(contract)


def test_what_is_forbidden_and_what_is_excepted_are_told_apart() -> None:
    rule = read_rule(" `a` may not\n  import `b`. Excepted is `c`.")
    assert rule == Rule(frozenset("a"), "may not import", frozenset("b"), frozenset("c"))
    assert rule != read_rule(" `a` may not import `c`. Excepted is `b`.")


def test_no_rule_is_told_that_is_not_checked() -> None:
    assert set(read_rules()) == {contract["name"] for contract in OTHERS}
