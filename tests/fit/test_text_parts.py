"""The text parts of models that read images: families with fields and defaults of their own."""

import pytest

from millrace_fit.errors import ArchitectureError
from millrace_fit.families.registry import declare
from tests.fit.raw_configs import FOUR_KV_HEADS, RAW, attention_of


def test_the_text_part_of_qwen_vl_is_qwens() -> None:
    """The published config.json of 2.5 has the text's fields at its top."""
    text = RAW | FOUR_KV_HEADS | {"rms_norm_eps": 1e-6, "rope_theta": 1e4}
    published = text | {"rope_scaling": {"type": "mrope", "mrope_section": [4, 2, 2]}, "vision_config": {}}
    flat = published | {"architectures": ["Qwen2_5_VLForConditionalGeneration"]}
    nested = {"architectures": flat["architectures"], "text_config": published}
    plain = declare(text | {"architectures": ["Qwen2ForCausalLM"]}).shape
    assert declare(flat).shape == declare(nested).shape == plain
    with pytest.raises(ArchitectureError, match='has rope_type "mrope"'):
        declare(flat | {"architectures": ["Qwen2ForCausalLM"]})
    with pytest.raises(ArchitectureError, match="text_config"):
        declare(flat | {"architectures": ["Qwen3VLForConditionalGeneration"]})


@pytest.mark.parametrize(
    ("family", "num_kv_heads", "expected"),
    [
        ("Qwen2_5_VLForConditionalGeneration", 8, (1e6, 1e-5, 32768)),
        ("Qwen3VLForConditionalGeneration", 32, (5e5, 1e-6, 128000)),
    ],
)
def test_it_has_defaults_of_its_own(family: str, num_kv_heads: int, expected: tuple[float, ...]) -> None:
    text = RAW | {"num_attention_heads": 32}
    del text["max_position_embeddings"]
    shape = declare({"architectures": [family], "text_config": text}).shape
    assert (shape.theta, shape.epsilon, shape.max_length) == expected
    assert attention_of(shape).num_kv_heads == num_kv_heads


def test_a_text_that_is_tied_is_so_beside_a_default_outside() -> None:
    """As earlier releases of transformers wrote it."""
    config = {
        "tie_word_embeddings": False,
        "text_config": RAW | FOUR_KV_HEADS | {"tie_word_embeddings": True},
    }
    tied = {
        name: declare(config | {"architectures": [f"{name}ForConditionalGeneration"]}).shape.is_tied
        for name in ("Qwen2VL", "Qwen2_5_VL", "Qwen3VL", "Llava", "LlavaOnevision", "LlavaNext")
    }
    assert {name for name in tied if tied[name]} == {"Qwen2VL", "Qwen2_5_VL", "Llava", "LlavaOnevision"}
