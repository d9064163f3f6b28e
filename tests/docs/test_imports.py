"""docs/architecture.md draws the layers of [tool.importlinter] and names its other rules."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
CONTRACTS: list[dict[str, Any]] = PROJECT["tool"]["importlinter"]["contracts"]
LAYERED = [contract for contract in CONTRACTS if contract["type"] == "layers"]
OTHERS = [contract for contract in CONTRACTS if contract["type"] != "layers"]


def read_section() -> str:
    page = (ROOT / "docs" / "architecture.md").read_text()
    return page.partition("### Who imports whom\n")[2].partition("\n## ")[0]


def read_rules() -> dict[str, set[str]]:
    """The names in backticks of each rule in the list, by the rule's name."""
    rules = re.findall(r"^- \*\*(.+?)\.\*\*(.+?)(?=\n- |\n\n)", read_section(), re.MULTILINE | re.DOTALL)
    return {name: set(re.findall(r"`([^`]+)`", text)) for name, text in rules}


def name_exception(ignored: str) -> str:
    """The module that a rule excepts: the one imported where everybody may import it, else the importer."""
    importer, imported = ignored.split(" -> ")
    return imported if importer.endswith(".**") else importer


def names_in(contract: dict[str, Any]) -> set[str]:
    lists = ("modules", "source_modules", "forbidden_modules")
    listed = {name for field in lists for name in contract.get(field, ())}
    return listed | {name_exception(ignored) for ignored in contract.get("ignore_imports", ())}


def test_the_drawn_layers_are_those_that_are_checked() -> None:
    drawn = re.findall(r"^```\n(.*?)\n```$", read_section(), re.MULTILINE | re.DOTALL)
    assert drawn == ["\n".join(contract["layers"]) for contract in LAYERED]


@pytest.mark.parametrize("contract", OTHERS, ids=lambda contract: contract["name"])
def test_every_rule_is_told_with_all_its_names(contract: dict[str, Any]) -> None:
    assert read_rules()[contract["name"]] == names_in(contract)


def test_no_rule_is_told_that_is_not_checked() -> None:
    assert set(read_rules()) == {contract["name"] for contract in OTHERS}
