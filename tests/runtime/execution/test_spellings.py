"""Files that name their tensors in another way, and those that have more beside, against transformers."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from tests.runtime.execution.families import FAMILIES
from tests.runtime.execution.greedy import check_greedy, prompt
from tests.runtime.execution.random_models import find_class, write_random

QWEN25_VL = "qwen2.5 vl, with a vision tower beside"
FLAT = {"model.": ""}
SPELLINGS: dict[str, tuple[str, dict[str, str]]] = {
    "2.5 vl, as its class names them": (
        QWEN25_VL, {"visual.": "model.visual.", "model.": "model.language_model."},
    ),
    "qwen3, flat": ("qwen3, norms of heads", FLAT),
    "mixtral, flat": ("mixtral", FLAT),
    "2 vl, without its head": ("qwen2 vl, with a vision tower beside", {"model.": "language_model."}),
    "3 vl, without its head": ("qwen3 vl, with a vision tower beside", FLAT),
    "mistral3, as its class names them": (
        "mistral3, with a vision tower beside",
        {
            "language_model.model.": "model.language_model.", "language_model.lm_head.": "lm_head.",
            "vision_tower.": "model.vision_tower.", "multi_modal": "model.multi_modal",
        },
    ),
}  # fmt: skip
CASES = [
    pytest.param(*case, id=name, marks=() if name.startswith("2.5") else pytest.mark.long)
    for name, case in SPELLINGS.items()
]


def rename(path: Path, beginnings: dict[str, str]) -> None:
    file = path / "model.safetensors"
    tensors = {}
    for name, tensor in load_file(file).items():
        old = next((one for one in beginnings if name.startswith(one)), "")
        tensors[beginnings.get(old, "") + name.removeprefix(old)] = tensor
    save_file(tensors, file, {"format": "pt"})


@pytest.mark.parametrize(("family", "beginnings"), CASES)
def test_other_names_are_read_as_transformers_reads_them(
    tmp_path: Path, make_driver: Callable[..., Any], family: str, beginnings: dict[str, str]
) -> None:
    path = write_random(tmp_path / "model", FAMILIES[family])
    rename(path, beginnings)
    check_greedy(path, prompt(75, 0), make_driver, find_class(FAMILIES[family]))


def test_mimo_is_qwen2_with_layers_beside(tmp_path: Path, make_driver: Callable[..., Any]) -> None:
    """Its code is not in transformers: MiMoForCausalLM has Qwen 2's `forward`."""
    path = write_random(tmp_path / "model", FAMILIES["qwen2, windows in the later layers"])
    file, config = path / "model.safetensors", json.loads((path / "config.json").read_text())
    tensors = load_file(file)
    others = {name: tensors[name] for name in tensors if ".layers.0." in name}
    beside = {name.replace("layers", "mtp_layers"): one.clone() for name, one in others.items()}
    mimo = tmp_path / "mimo"
    mimo.mkdir()
    save_file(tensors | beside, mimo / "model.safetensors", {"format": "pt"})
    own = {"architectures": ["MiMoForCausalLM"], "model_type": "mimo", "num_nextn_predict_layers": 1}
    (mimo / "config.json").write_text(json.dumps(config | own))
    check_greedy(path, prompt(75, 0), lambda _: make_driver(mimo))
