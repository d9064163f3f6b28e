"""Judge the demo model and write its card: `python -m stories_training.evaluate`."""

import argparse
import math
import os
from pathlib import Path

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch.nn import functional

from stories_training.generator import HELD_OUT_SEED, generate_document
from stories_training.llama import Llama, LlamaShape
from stories_training.tokens import BEGIN, END, ROLE_TOKENS, encode_document
from stories_training.train import FOLDER, Recipe

NUM_DOCUMENTS = 60
"""Held-out documents for the card's and the test's measurements."""
QUALITY = """bfloat16
  1.7525 and 0.000003, `Int8` 1.7529 and 0.00011, `Int4` 1.7534 and 0.0015"""
"""The card's figures for each precision: `python -m benchmarks.quality` measures them."""
PERPLEXITY_BOUND = 1.82
"""The test's limit for the shipped model."""
NUM_SAMPLES = 20


def load_model(folder: Path) -> tuple[Llama, Tokenizer]:
    """Return the model in float32 and its tokenizer."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    model = Llama(LlamaShape(vocabulary_size=tokenizer.get_vocab_size()))
    weights = load_file(folder / "model.safetensors")
    model.load_state_dict({name: tensor.float() for name, tensor in weights.items()})
    return model.eval(), tokenizer


@torch.no_grad()
def measure_perplexity(model: Llama, tokenizer: Tokenizer, num_documents: int) -> float:
    """Return the perplexity per token over the first held-out documents, each alone."""
    total, count = 0.0, 0
    for seed in range(HELD_OUT_SEED, HELD_OUT_SEED + num_documents):
        ids = torch.tensor([encode_document(tokenizer, generate_document(seed))])
        loss = functional.cross_entropy(model(ids[:, :-1])[0], ids[0, 1:], reduction="sum")
        total, count = total + loss.item(), count + ids.shape[1] - 1
    return math.exp(total / count)


@torch.no_grad()
def sample_answer(model: Llama, tokenizer: Tokenizer, request: str, seed: int, temperature: float) -> str:
    """Return an answer of at most 250 tokens to one user message."""
    text = f"{BEGIN}{ROLE_TOKENS['user']}{request}{END}{ROLE_TOKENS['assistant']}"
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    start, end = len(ids), tokenizer.token_to_id(END)
    generator = torch.Generator().manual_seed(seed)
    while len(ids) < start + 250:
        chances = (model(torch.tensor([ids]))[0, -1] / temperature).softmax(-1)
        drawn = int(torch.multinomial(chances, 1, generator=generator).item())
        if drawn == end:
            break
        ids.append(drawn)
    return str(tokenizer.decode(ids[start:]))


def list_requests() -> list[str]:
    """Return the requests of the samples: the first user messages of held-out conversations."""
    requests: list[str] = []
    seed = HELD_OUT_SEED
    while len(requests) < NUM_SAMPLES:
        asked = [message.content for message in generate_document(seed).messages if message.role == "user"]
        requests += asked[:1]
        seed += 1
    return requests


def render_card(perplexity: float, num_documents: int, samples: list[tuple[str, str]], trained: str) -> str:
    """Return the model card as Markdown."""
    recipe, shape = Recipe(), LlamaShape()
    tokens = recipe.steps * recipe.batch_tokens
    quoted = "\n\n".join(
        f"{i}. **{_flat(asked)}**\n\n   {_flat(said)}" for i, (asked, said) in enumerate(samples, 1)
    )
    return f"""# stories

A chat model small enough to ship: it tells short stories and answers questions about them. It exists to
show and to test serving; it knows nothing else.

- **Shape:** Llama, vocabulary {shape.vocabulary_size} (byte-level BPE), width {shape.width},
  MLP {shape.hidden_width}, {shape.num_layers} layers, {shape.num_heads}/{shape.num_kv_heads} heads of
  {shape.head_width}, tied embedding, bfloat16, context {shape.max_length} (trained on rows of
  {recipe.row_tokens}, the last steps on {recipe.long_row_tokens}).
- **Data:** stories and conversations made by `stories_training.generator` of this repository,
  whose small world tracks who is where and who holds what. No third party's text. Training uses seeds
  from 0 on, evaluation seeds from {HELD_OUT_SEED} on.
- **Training:** `python -m stories_training.train` with its defaults: {recipe.steps} steps,
  {tokens} tokens; {trained}.
  It starts with two attention heads that copy (`stories_training.llama`). Two threads and fixed
  seeds: the same machine class and torch version give the same weights.
- **Held-out perplexity:** {perplexity:.3f} per token over {num_documents} documents; a test holds it to
  at most {PERPLEXITY_BOUND}. Perplexity on such regular text hides damage: compare logits too.
- **Served at other precisions:** perplexity, and the mean KL divergence from float32 in nats a token, over
  60 documents by `python -m benchmarks.quality` (AVX-512 with BF16): {QUALITY}.
- **Known limits:** characters and things mostly stay themselves, words are repeated exactly, and who
  somebody is is answered well. Questions that take several steps (who gave what, where is it now) are
  often wrong, and a story may contradict itself. The generator's text has no such faults.
- **Licence:** as the repository's, weights and data.

## {len(samples)} samples, not selected

The first requests of the held-out conversations, at temperature 0.5; the seed of a sample is its number.

{quoted}
"""


def _flat(text: str) -> str:
    return " ".join(text.split())


def main(argv: list[str] | None = None) -> int:
    """Measure, sample, write the card."""
    parser = argparse.ArgumentParser(prog="python -m stories_training.evaluate", description=__doc__)
    parser.add_argument(
        "--model", type=Path, default=FOLDER, help="the model folder (default: the shipped one)"
    )
    parser.add_argument(
        "--documents", type=int, default=NUM_DOCUMENTS, help="held-out documents (default: %(default)s)"
    )
    parser.add_argument(
        "--trained", default="time not recorded", help="training time and machine, for the card"
    )
    parsed = parser.parse_args(argv)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    torch.set_num_threads(1)
    model, tokenizer = load_model(parsed.model)
    perplexity = measure_perplexity(model, tokenizer, parsed.documents)
    asked = list_requests()
    said = [sample_answer(model, tokenizer, text, number, 0.5) for number, text in enumerate(asked, 1)]
    card = render_card(perplexity, parsed.documents, list(zip(asked, said, strict=True)), parsed.trained)
    (parsed.model / "README.md").write_text(card)
    print(f"perplexity {perplexity:.4f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
