"""The sampling parameters of a sequence: how its tokens are drawn."""

import msgspec

MOST_BIASED = 1024
"""The most ids in `bias`, and in `held_back`."""


class Sampling(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """Sampling parameters of one sequence, already validated and with its own seed.

    These change the logits, in this order: `allowed`, `held_back`, `bias`, `repetition_penalty`,
    `frequency_penalty`, `presence_penalty`. A draw is from softmax(changed / temperature), cut to the tokens
    that are at least `min_p` times as likely as the most likely one, then to the `top_k` most likely, and
    then to the smallest set of total probability `top_p`. The draw at position p is `uniform(seed, p)`, a
    counter-based random number, so a sequence's text depends only on the sequence itself. Every id is one of
    the vocabulary.
    """

    temperature: float = 1.0
    """0 means greedy; ties go to the lowest token id."""
    top_p: float = 1.0
    top_k: int = 0
    """0 means no limit."""
    min_p: float = 0.0
    """0 means no limit."""
    seed: int = 0
    repetition_penalty: float = 1.0
    """Divides the positive logits of the tokens of prompt and output, and multiplies the others; 1: none."""
    frequency_penalty: float = 0.0
    """Subtracted from a token's logit once for each time that the output has the token."""
    presence_penalty: float = 0.0
    """Subtracted once from the logit of each token that the output has."""
    bias: dict[int, float] = {}
    """Added to the logits of these ids; -infinity bans one."""
    allowed: bytes | None = None
    """A mask for every draw, laid out as one of `provide_masks`; None: all. A row's own mask binds it too."""
    min_tokens: int = 0
    """The output has so many tokens before it may have one of `held_back`."""
    held_back: tuple[int, ...] = ()
    """The ids that may not come before `min_tokens`, because they would end the sequence."""
    num_logprobs: int | None = None
    """Log-probabilities wanted: None none, 0 only the drawn token's, n also the n most likely. They are those
    of the model's own logits."""
    num_prompt_logprobs: int | None = None
    """The same for the prompt's tokens, all but the first: None none, 0 only each token's own."""


def count_mask_bytes(vocabulary_size: int) -> int:
    """Return the bytes of one draw's mask."""
    return -(-vocabulary_size // 32) * 4


def build_costly_sampling(vocabulary_size: int) -> Sampling:
    """Return the most expensive draw of a request, which also scores its prompt.

    The engine measures its time and its memory before the first request. It has no top_k, because top_p alone
    takes more: a GPU launches a kernel of its own for it.
    """
    return Sampling(
        temperature=1.0,
        top_p=0.9,
        min_p=0.01,
        repetition_penalty=1.1,
        frequency_penalty=0.1,
        bias=dict.fromkeys(range(min(vocabulary_size, MOST_BIASED)), 0.1),
        allowed=b"\xff" * count_mask_bytes(vocabulary_size),
        min_tokens=1,
        held_back=(0,),
        num_logprobs=20,
        num_prompt_logprobs=20,
    )
