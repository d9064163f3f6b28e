"""What published checkpoints say of their matrices: written by hand, in their files' fields."""

import json
from pathlib import Path
from typing import Any

import pytest

from millrace_fit.quantization.methods import add_modelopt, read_quantization
from millrace_fit.quantization.rules import Quantization
from millrace_fit.quantization.scheme import Scheme

PUBLISHED: dict[str, Any] = json.loads(Path(__file__).with_name("published_quantizations.json").read_text())


def read(found: Any) -> Quantization:
    if found["file"] == "hf_quant_config.json":
        return read_quantization(add_modelopt({}, found["quantization"]))
    return read_quantization({"quantization_config": found["quantization"]})


def show(scheme: Scheme | None) -> str | None:
    return scheme and f"{scheme}, {scheme.packing}, rows {scheme.rows}"


@pytest.mark.parametrize("name", PUBLISHED)
def test_each_module_has_the_scheme_that_its_files_have(name: str) -> None:
    quantization, modules = read(PUBLISHED[name]), PUBLISHED[name]["modules"]
    assert {module: show(quantization.find_scheme(module)) for module in modules} == modules
