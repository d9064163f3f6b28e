"""The heads that training starts with."""

import torch

from stories_training.llama import Llama, LlamaShape, plant_induction


@torch.no_grad()
def test_a_planted_model_repeats_before_any_training_and_one_without_does_not() -> None:
    torch.manual_seed(0)
    words = torch.randint(6, 4096, (4, 40))
    ids = torch.cat([words, words], dim=1)
    model = Llama(LlamaShape(vocabulary_size=4096))
    assert share_repeated(model, ids) < 0.1
    plant_induction(model)
    assert share_repeated(model, ids) > 0.6


def share_repeated(model: Llama, ids: torch.Tensor) -> float:
    guessed = model(ids[:, :-1]).argmax(-1)
    half = ids.shape[1] // 2
    return (guessed[:, half:] == ids[:, half + 1 :]).float().mean().item()
