"""A model's folder with a tokenizer and a chat template, no weights."""

import json
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

END_TOKEN = "<|end|>"
TEMPLATE = (
    "{% for m in messages %}"
    "{% if m.content == 'loop' %}"
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    "{% endif %}"
    "{% if m.content == 'hoard' %}{{ ('x' * 3000000000) | length }}{% endif %}"
    "{% if m.role == 'villain' %}{{ raise_exception('no villains') }}{% endif %}"
    "{{ m.role }}: {{ m.content }}\n"
    "{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
)


def build_byte_level() -> tokenizers.Tokenizer:
    """One token a byte, and a few merges, so that stop strings cross tokens."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("s", "t"), ("o", "p")]
    pieces = [*letters, *("".join(pair) for pair in merges)]
    native = tokenizers.Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, merges))
    native.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    native.decoder = decoders.ByteLevel()
    native.add_special_tokens([END_TOKEN])
    return native


def build_sentencepiece() -> tokenizers.Tokenizer:
    """Llama-2's shape: a leading space that the first token loses, and bytes for what is unknown."""
    pieces = ["<unk>", "\u2581", "\u2581a", "b", "c", *(f"<0x{byte:02X}>" for byte in range(256))]
    native = tokenizers.Tokenizer(
        models.BPE(
            {p: i for i, p in enumerate(pieces)}, [("\u2581", "a")][:0], unk_token="<unk>", byte_fallback=True
        )
    )
    native.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    native.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return native


def write_model(
    folder: Path,
    native: tokenizers.Tokenizer,
    template: str | None = TEMPLATE,
    *,
    end_token: str = END_TOKEN,
) -> Path:
    native.save(str(folder / "tokenizer.json"))
    config = {"eos_token": end_token, "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "config.json").write_text(json.dumps({"eos_token_id": native.token_to_id(end_token)}))
    return folder
