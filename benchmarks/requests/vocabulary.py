"""A vocabulary like that of a real model, without a download: BPE, trained on Python's standard library."""

import json
import sysconfig
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

SIZE = 32_768
END_OF_TEXT = "<|endoftext|>"


def write_vocabulary(folder: Path) -> Path:
    """Write the tokenizer's files into a folder, over those that are there; return the folder."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=SIZE,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[END_OF_TEXT],
    )
    sources = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    tokenizer.train_from_iterator((path.read_text(errors="ignore") for path in sources), trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": END_OF_TEXT}))
    return folder
