"""The most expensive draw, for warming up and measuring before the first request."""

from millrace_runtime.protocol.executor import mask_bytes
from millrace_runtime.protocol.sampling import MOST_BIASED, Sampling


def costly_sampling(vocabulary_size: int) -> Sampling:
    """Return a draw that takes all that a draw can, and scores its prompt.

    It has no top_k, because top_p alone takes more: a GPU launches a kernel of its own for it.
    """
    return Sampling(
        temperature=1.0,
        top_p=0.9,
        min_p=0.01,
        repetition_penalty=1.1,
        frequency_penalty=0.1,
        bias=dict.fromkeys(range(min(vocabulary_size, MOST_BIASED)), 0.1),
        allowed=b"\xff" * mask_bytes(vocabulary_size),
        min_tokens=1,
        held_back=(0,),
        num_logprobs=20,
        num_prompt_logprobs=20,
    )
