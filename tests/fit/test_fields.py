"""Each field of a family: transformers' own classes name them, and the page of models lists what is read."""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
from transformers import AutoConfig

from millrace_fit import families
from millrace_fit.declaration.family import Family
from millrace_fit.declaration.refusals import NEUTRAL
from millrace_fit.errors import ArchitectureError
from millrace_fit.families.multimodal import MULTIMODAL
from millrace_fit.families.registry import FAMILIES, PAGE, declare
from tests.fit.raw_configs import make_any

ROOT: Final = Path(__file__).parents[2]
TRAINING: Final = "changes training alone"
OUTPUT: Final = "says what else a call of the model returns"
FILES: Final = "says how and by whom the files were written"
NO_JSON: Final = "its own class sets it"
MAMBA: Final = "of layers with Mamba or experts, which are refused"
HARMLESS: Final = {
    "architectures": "names the family itself",
    "attention_dropout": TRAINING,
    "bos_token_id": "of prompts and their ends, not of the model",
    "chunk_size_feed_forward": "read by encoders alone",
    "dtype": "of the weights: the loader chooses it",
    "embd_pdrop": TRAINING,
    "eos_token_id": "of prompts and their ends, not of the model",
    "id2label": "of classifiers",
    "ignore_keys_at_rope_validation": NO_JSON,
    "initializer_range": TRAINING,
    "is_encoder_decoder": "read for classes of encoders alone",
    "label2id": "of classifiers",
    "output_hidden_states": OUTPUT,
    "output_router_logits": OUTPUT,
    "pad_token_id": TRAINING,
    "pretraining_tp": "another order of the same sums",
    "problem_type": "of classifiers",
    "resid_pdrop": TRAINING,
    "residual_dropout": TRAINING,
    "return_dict": OUTPUT,
    "router_aux_loss_coef": TRAINING,
    "router_jitter_noise": TRAINING,
    "transformers_version": FILES,
    "use_cache": OUTPUT,
}
"""What no family reads, with the reason why no answer changes."""
OF_FAMILY: Final = {
    "granitemoehybrid": dict.fromkeys(
        (
            *("intermediate_size", "num_experts_per_tok", "time_step_limit", "mamba_chunk_size"),
            *("mamba_conv_bias", "mamba_d_conv", "mamba_d_head", "mamba_d_state", "mamba_expand"),
            *("mamba_n_groups", "mamba_n_heads", "mamba_proj_bias"),
        ),
        MAMBA,
    ),
    "qwen3_vl_moe": {"sliding_window": "no mask of this class reads it"},
}
WORD: Final = "another"
"""A value that no field may have."""
SWITCHES: Final[tuple[dict[str, Any], ...]] = (
    {},
    {"use_sliding_window": True, "sliding_window": 16},
    {"mlp_only_layers": [0]},
    {"num_experts": None},
    {"num_experts_per_tok": None},
)
"""Some fields are read only beside others."""
OWN_CODE: Final = ("mimo", "minicpm")
"""transformers has no class of these."""
NAMED = [
    pytest.param(family, text, id=f"{family.model_type}, {text}")
    for family in FAMILIES.values()
    for text in family.text_types or (family.model_type,)
    if text not in OWN_CODE
]


def is_read(family: Family, text: str, name: str) -> bool:
    """Whether another value than this field may have is refused, with its name."""
    return any(_find_refusal(family, text, switch | {name: WORD}, name) for switch in SWITCHES)


def _find_refusal(family: Family, text: str, change: dict[str, Any], name: str) -> bool:
    nested = {"model_type": text} | change if family.text_field else None
    try:
        declare(make_any(family.architecture, {} if nested else change, text=nested))
    except ArchitectureError as error:
        # Both spellings of the rotary embedding share a sentence.
        return f" {name} " in str(error) or (name.startswith("rope_") and "rotary scaling" in str(error))
    return False


def list_attributes(text: str) -> set[str]:
    """Return the fields of transformers' class, and its other names of them."""
    config = AutoConfig.for_model(text).get_text_config()
    return {name for name in (*vars(config), *type(config).attribute_map) if not name.startswith("_")}


@pytest.mark.parametrize(("family", "text"), NAMED)
def test_a_field_of_transformers_own_class_is_read_or_changes_nothing(family: Family, text: str) -> None:
    harmless = HARMLESS | OF_FAMILY.get(family.model_type, {})
    unknown = {name for name in list_attributes(text) - harmless.keys() if not is_read(family, text, name)}
    assert not unknown


@cache
def read_section() -> str:
    """Return what the page says of models that are not quantised."""
    return (ROOT / PAGE).read_text().partition("## Which models")[2].partition("\n### ")[0]


def list_words(text: str) -> set[str]:
    return set(re.findall(r"`([A-Za-z0-9_]+)`", text))


def list_rows() -> Iterator[tuple[set[str], set[str]]]:
    """Yield the architectures of each row of fields, and the fields."""
    table = read_section().partition("| architecture | fields")[2].partition("\n\n")[0]
    for row in table.replace("|\n| |", "").splitlines()[2:]:
        _, names, fields, _ = row.split("|")
        yield list_words(names), list_words(fields)


def list_literals() -> set[str]:
    """Return all words of the families' code: each field that one reads is among them."""
    folder = Path(families.__file__).parent
    files = [*folder.glob("*.py"), *(folder.parent / "declaration").glob("*.py")]
    return {word for file in files for word in re.findall(r'"([a-z][a-z0-9_]+)"', file.read_text())}


OF_ALL = {"architectures", "model_type", "quantization_config", "compression_config"} | list_words(
    read_section().partition("All read")[2].partition("\n\n")[0]
)
"""Fields that each family reads."""
OF_ROWS = {name: fields for names, fields in list_rows() for name in names}


def test_the_page_has_a_row_for_each_family_that_is_none_of_anothers_text() -> None:
    assert OF_ROWS.keys() == FAMILIES.keys() - {family.architecture for family in MULTIMODAL}


@pytest.mark.parametrize("name", sorted(OF_ROWS))
def test_the_page_lists_the_fields_that_are_read(name: str) -> None:
    family = FAMILIES[name]
    foreign = NEUTRAL.keys() - family.known
    names = (list_literals() | OF_ROWS[name]) - OF_ALL - foreign
    texts = family.text_types or (family.model_type,)
    assert {one for one in names if any(is_read(family, text, one) for text in texts)} == OF_ROWS[name]
