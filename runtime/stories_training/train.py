"""Train the demo model: `python -m stories_training.train`, reproducible on two threads.

A compact Llama in plain torch, independent of the runtime's own models, so that each can check the
other. Most matrices learn by orthogonalised momentum (Muon): after 80 small steps a batch's loss was
1.8 against AdamW's 3.2 (tried). Embeddings, norms, queries and keys learn by AdamW.
"""

import argparse
import json
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional

from stories_training.generator import generate_document
from stories_training.llama import Llama, LlamaShape, plant_induction
from stories_training.tokens import END, encode_document, train_tokenizer, write_tokenizer

NUM_THREADS = 2
FOLDER = Path(__file__).parents[1] / "millrace_runtime" / "demo" / "stories"

# A quintic whose iteration drives singular values towards 1 from anywhere in (0, 1].
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)


def orthogonalise(matrix: Tensor, num_iterations: int = 4) -> Tensor:
    """Return roughly the nearest half-orthogonal matrix to [m, n], by Newton-Schulz iterations."""
    a, b, c = _COEFFICIENTS
    is_tall = matrix.shape[0] > matrix.shape[1]
    x: Tensor = matrix.T if is_tall else matrix
    x = x / (x.norm() + 1e-7)
    for _ in range(num_iterations):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if is_tall else x


class Muon(torch.optim.Optimizer):
    """Nesterov momentum, orthogonalised (Jordan et al., 2024); for 2-D weights of hidden layers."""

    def __init__(self, matrices: Iterable[Tensor], *, rate: float, momentum: float = 0.95) -> None:
        super().__init__(matrices, {"lr": rate, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Apply the gradients; closures are not supported."""
        if closure is not None:
            raise NotImplementedError("call backward yourself, then step()")
        for group in self.param_groups:
            for matrix in group["params"]:
                self._update(matrix, group["lr"], group["momentum"])

    def _update(self, matrix: Tensor, rate: float, momentum: float) -> None:
        state = self.state[matrix]
        buffer = state.setdefault("momentum", torch.zeros_like(matrix))
        if matrix.grad is None:
            return
        buffer.lerp_(matrix.grad, 1 - momentum)
        update = orthogonalise(matrix.grad.lerp(buffer, momentum))
        scale = max(1.0, matrix.shape[0] / matrix.shape[1]) ** 0.5
        matrix.add_(update, alpha=-rate * scale)


@dataclass(frozen=True)
class Recipe:
    """All inputs that decide the weights; the defaults regenerate the shipped model."""

    steps: int = 1900
    batch_tokens: int = 2048
    row_tokens: int = 256
    long_row_tokens: int = 1024
    long_fraction: float = 0.05
    """The last steps use long rows, so that the model also learns long conversations."""
    matrix_rate: float = 0.01
    vector_rate: float = 2e-3
    embedding_rate: float = 0.01
    warmup_steps: int = 20
    cooldown_fraction: float = 0.4
    tokenizer_documents: int = 4000
    seed: int = 0

    def rate_factor(self, step: int) -> float:
        """Return the learning rate's factor: linear warm-up, a plateau, linear decay to nothing."""
        left = (self.steps - step) / (self.steps * self.cooldown_fraction)
        return min((step + 1) / self.warmup_steps, 1.0, left)

    def row_length(self, step: int) -> int:
        """Return the tokens in a row of this step's batch."""
        return self.long_row_tokens if step >= self.steps * (1 - self.long_fraction) else self.row_tokens


def stream_tokens(tokenizer: Tokenizer, first_seed: int) -> Iterator[int]:
    """Yield the tokens of the documents from a seed on, one after another."""
    seed = first_seed
    while True:
        yield from encode_document(tokenizer, generate_document(seed))
        seed += 1


def draw_batch(tokens: Iterator[int], recipe: Recipe, step: int) -> Tensor:
    """Return ids [rows, row tokens + 1] for a step."""
    length = recipe.row_length(step)
    rows = recipe.batch_tokens // length
    return torch.tensor([[next(tokens) for _ in range(length + 1)] for _ in range(rows)])


def train(recipe: Recipe, folder: Path, *, save_seconds: float) -> None:
    """Train and write the model folder, early once after save_seconds and at the end."""
    torch.manual_seed(recipe.seed)
    torch.use_deterministic_algorithms(True)
    tokenizer = train_tokenizer(recipe.tokenizer_documents)
    shape = LlamaShape(vocabulary_size=tokenizer.get_vocab_size())
    model = Llama(shape)
    plant_induction(model)
    optimizers = _build_optimizers(model, recipe)
    tokens = stream_tokens(tokenizer, 0)
    started, saved = time.monotonic(), 0.0
    for step in range(recipe.steps):
        loss = _train_step(model, optimizers, recipe, step, draw_batch(tokens, recipe, step))
        elapsed = time.monotonic() - started
        if step % 20 == 0:
            _say(f"step {step} loss {loss:.3f} perplexity {math.exp(loss):.2f} {elapsed:.0f} s")
        if elapsed - saved > save_seconds and step < recipe.steps - 1:
            saved = elapsed
            write_model(model, shape, tokenizer, folder)
            _say(f"saved a checkpoint after step {step}")
    write_model(model, shape, tokenizer, folder)
    _say(f"done: {recipe.steps} steps in {time.monotonic() - started:.0f} s")


def _say(line: str) -> None:
    print(line, flush=True)


def _build_optimizers(model: Llama, recipe: Recipe) -> list[torch.optim.Optimizer]:
    """Return Muon and AdamW, each with its peak rates."""
    embedding = model.model.embed_tokens.weight
    rest = [(name, weight) for name, weight in model.named_parameters() if weight is not embedding]
    matrices = [weight for name, weight in rest if _is_orthogonalised(name, weight)]
    vectors = [weight for name, weight in rest if not _is_orthogonalised(name, weight)]
    groups = [
        {"params": vectors, "lr": recipe.vector_rate},
        {"params": [embedding], "lr": recipe.embedding_rate},
    ]
    adam = torch.optim.AdamW(groups, betas=(0.9, 0.95), weight_decay=0.0)
    return [Muon(matrices, rate=recipe.matrix_rate), adam]


def _is_orthogonalised(name: str, weight: Tensor) -> bool:
    """Whether Muon moves a weight. Queries and keys would grow until attention saturates (tried)."""
    return weight.ndim == 2 and not any(part in name for part in ("q_proj", "k_proj"))


def _train_step(
    model: Llama, optimizers: list[torch.optim.Optimizer], recipe: Recipe, step: int, batch: Tensor
) -> float:
    for group in (group for optimizer in optimizers for group in optimizer.param_groups):
        group["lr"] = group.setdefault("initial_lr", group["lr"]) * recipe.rate_factor(step)
    logits = model(batch[:, :-1])
    loss = functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
    loss.backward()  # type: ignore[no-untyped-call]
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return loss.item()


def write_model(model: Llama, shape: LlamaShape, tokenizer: Tokenizer, folder: Path) -> None:
    """Write a folder that loads as any Llama checkpoint; the weights appear whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    end = tokenizer.token_to_id(END)
    config = shape.to_config() | {"bos_token_id": 0, "eos_token_id": end, "pad_token_id": 2}
    generation = {"bos_token_id": 0, "eos_token_id": end, "pad_token_id": 2, "max_new_tokens": 512}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
    write_tokenizer(tokenizer, folder, shape.max_length)
    weights = {name: tensor.to(torch.bfloat16).contiguous() for name, tensor in model.state_dict().items()}
    partial = folder / "model.safetensors.partial"
    save_file(weights, partial, metadata={"format": "pt"})
    partial.chmod(0o644)  # save_file writes for its owner only
    partial.replace(folder / "model.safetensors")


def main(argv: list[str] | None = None) -> int:
    """Train by the command line's options."""
    parser = argparse.ArgumentParser(prog="python -m stories_training.train", description=__doc__)
    parser.add_argument(
        "--out", type=Path, default=FOLDER, help="the folder to write (default: the shipped one)"
    )
    parser.add_argument(
        "--steps", type=int, default=Recipe.steps, help="training steps (default: %(default)s)"
    )
    parser.add_argument("--save-seconds", type=float, default=200.0, help="seconds between checkpoints")
    parsed = parser.parse_args(argv)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    torch.set_num_threads(NUM_THREADS)  # sums depend on the number of threads
    train(Recipe(steps=parsed.steps), parsed.out, save_seconds=parsed.save_seconds)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
