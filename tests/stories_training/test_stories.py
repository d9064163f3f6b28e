"""The shipped files, judged by `transformers` rather than by ourselves."""

import json
import math

import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoTokenizer, LlamaForCausalLM

from stories_training.evaluate import NUM_DOCUMENTS, PERPLEXITY_BOUND, load_model
from stories_training.generator import HELD_OUT_SEED, generate_document
from stories_training.tokens import encode_document
from stories_training.train import FOLDER


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(FOLDER / "tokenizer.json"))


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    torch.set_num_threads(1)
    return LlamaForCausalLM.from_pretrained(FOLDER, dtype=torch.float32).eval()


def test_the_weights_are_small_enough_to_ship() -> None:
    assert (FOLDER / "model.safetensors").stat().st_size <= 12 * 2**20


def test_config_and_tokenizer_agree(tokenizer: Tokenizer) -> None:
    config = json.loads((FOLDER / "config.json").read_text())
    assert config["vocab_size"] == tokenizer.get_vocab_size() == 4096
    assert tokenizer.id_to_token(config["eos_token_id"]) == "<|end|>"
    assert tokenizer.id_to_token(config["bos_token_id"]) == "<|begin|>"


@pytest.mark.parametrize(
    "text", ["Once upon a time", "Zoë's naïve 😀 café\n\ttabs  spaces", "fox 123 !?", "你好"]
)
def test_any_text_survives_the_tokenizer(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False).ids) == text


def test_the_chat_template_lays_out_what_was_trained(tokenizer: Tokenizer) -> None:
    document = next(d for d in map(generate_document, range(HELD_OUT_SEED, HELD_OUT_SEED + 50)) if d.messages)
    chat = AutoTokenizer.from_pretrained(FOLDER)
    messages = [vars(message) for message in document.messages]
    ids = chat.apply_chat_template(messages, tokenize=True, return_dict=False)
    assert ids == encode_document(tokenizer, document)
    prompt = chat.apply_chat_template(messages[:1], tokenize=False, add_generation_prompt=True)
    assert prompt.endswith("<|end|><|assistant|>")


def test_the_chat_template_refuses_a_role_it_does_not_know() -> None:
    chat = AutoTokenizer.from_pretrained(FOLDER)
    with pytest.raises(Exception, match="system, user and assistant only"):
        chat.apply_chat_template([{"role": "tool", "content": "x"}], tokenize=False)


@torch.no_grad()
def test_held_out_perplexity_is_within_the_cards_bound(tokenizer: Tokenizer, model: LlamaForCausalLM) -> None:
    total, count = 0.0, 0
    for seed in range(HELD_OUT_SEED, HELD_OUT_SEED + NUM_DOCUMENTS):
        ids = torch.tensor([encode_document(tokenizer, generate_document(seed))])
        total += model(ids, labels=ids).loss.item() * (ids.shape[1] - 1)
        count += ids.shape[1] - 1
    assert math.exp(total / count) <= PERPLEXITY_BOUND
    assert str(PERPLEXITY_BOUND) in (FOLDER / "README.md").read_text()


@torch.no_grad()
def test_the_trainers_llama_is_the_one_of_transformers(model: LlamaForCausalLM) -> None:
    ours, _ = load_model(FOLDER)
    ids = torch.arange(100, 180)[None]
    torch.testing.assert_close(ours(ids), model(ids).logits, atol=2e-4, rtol=1e-4)


@torch.no_grad()
def test_a_greedy_story_ends_by_itself(model: LlamaForCausalLM) -> None:
    chat = AutoTokenizer.from_pretrained(FOLDER)
    asked = [{"role": "user", "content": "Tell me a story about a fox and a lantern."}]
    ids = chat.apply_chat_template(asked, add_generation_prompt=True, return_tensors="pt", return_dict=False)
    out = model.generate(ids, max_new_tokens=300, do_sample=False, attention_mask=torch.ones_like(ids))
    text = chat.decode(out[0, ids.shape[1] :], skip_special_tokens=True)
    assert out[0, -1].item() == chat.eos_token_id
    assert text.count(".") >= 5
