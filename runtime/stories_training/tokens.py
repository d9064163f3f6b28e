"""The demo model's tokenizer: byte-level BPE over generated text, and its chat template."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from stories_training.generator import Document, generate_document
from stories_training.lexicon import read_extra_words

VOCABULARY_SIZE: Final = 4096
BEGIN, END, PAD = "<|begin|>", "<|end|>", "<|pad|>"
ROLE_TOKENS: Final = {"system": "<|system|>", "user": "<|user|>", "assistant": "<|assistant|>"}
SPECIAL_TOKENS: Final = (BEGIN, END, PAD, *ROLE_TOKENS.values())
CHAT_TEMPLATE: Final = (
    "{{- bos_token -}}"
    "{%- for message in messages -%}"
    "{%- if message.role not in ['system', 'user', 'assistant'] -%}"
    "{{- raise_exception('stories knows the roles system, user and assistant only') -}}"
    "{%- endif -%}"
    "{{- '<|' + message.role + '|>' + message.content + '<|end|>' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}"
)


def train_tokenizer(num_documents: int) -> Tokenizer:
    """Return a tokenizer trained on the first documents, the same each time."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(num_documents), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BEGIN} $A", special_tokens=[(BEGIN, SPECIAL_TOKENS.index(BEGIN))]
    )
    return tokenizer


def token_id(tokenizer: Tokenizer, token: str) -> int:
    """Return the id of a token that the vocabulary must have. Raises KeyError if it is missing."""
    found = tokenizer.token_to_id(token)
    if found is None:
        raise KeyError(f"the tokenizer has no token {token}; train it again")
    return int(found)


def encode_document(tokenizer: Tokenizer, document: Document) -> list[int]:
    """Return the token ids from begin to end, in the order of the chat template or of a plain prompt."""
    ids = [token_id(tokenizer, BEGIN)]
    for message in document.messages:
        ids.append(token_id(tokenizer, ROLE_TOKENS[message.role]))
        ids += tokenizer.encode(message.content, add_special_tokens=False).ids
        ids.append(token_id(tokenizer, END))
    if document.text:
        ids += [*tokenizer.encode(document.text, add_special_tokens=False).ids, token_id(tokenizer, END)]
    return ids


def write_tokenizer(tokenizer: Tokenizer, folder: Path, max_length: int) -> None:
    """Write tokenizer.json and tokenizer_config.json."""
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BEGIN,
        "eos_token": END,
        "pad_token": PAD,
        "clean_up_tokenization_spaces": False,
        "model_max_length": max_length,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


def _texts(num_documents: int) -> Iterator[str]:
    for seed in range(num_documents):
        document = generate_document(seed)
        yield document.text or "\n".join(message.content for message in document.messages)
    words = read_extra_words()
    yield from (
        " ".join(f"{word}{ending}" for word in words) for ending in ("", ".", "s", "ed", "ing", "er", "ly")
    )
    yield " ".join(word.capitalize() for word in words)
