"""Small models with random weights that transformers writes, and their logits."""

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoModelForMultimodalLM,
)

from tests.runtime.execution.sizes import SIZES

NO_IDS = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"), 0)


def find_class(fields: dict[str, Any]) -> Any:
    """Return transformers' class of a model, whose parts config.json names."""
    if "audio_config" in fields:
        return AutoModelForMultimodalLM
    return AutoModelForImageTextToText if "vision_config" in fields else AutoModelForCausalLM


def write_random(folder: Path, changes: dict[str, Any], *, is_raw: bool = False) -> Path:
    """Write a model whose norms are not all ones, with these fields instead of SIZES'; "-": without it.

    `is_raw`: config.json has the fields as they are, and not as transformers writes them.
    """
    fields = {name: value for name, value in (SIZES | changes).items() if value != "-"}
    model_type = fields.pop("model_type")
    torch.manual_seed(0)
    given = deepcopy(fields)  # transformers writes what it has chosen into a rope_scaling
    model = find_class(fields).from_config(
        AutoConfig.for_model(model_type, **NO_IDS, **given), dtype=torch.float32
    )
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.normal_(std=0.2)
            if "norm" in name:
                weight.add_(1.0)
    model.save_pretrained(folder)
    config = folder / "config.json"
    architectures = fields.get("architectures") or json.loads(config.read_text())["architectures"]
    assert architectures, "the loader finds the family by it"
    if is_raw:
        config.write_text(
            json.dumps(NO_IDS | fields | {"model_type": model_type, "architectures": architectures})
        )
    return folder
