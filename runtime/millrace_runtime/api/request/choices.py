"""How many answers a request draws and returns: `n` and `best_of`. Pure."""

from typing import NamedTuple

from millrace_runtime.api.errors import BadRequestError
from millrace_runtime.api.request.openai_bodies import MAX_SEQUENCES, GenerationBody


class BestOf(NamedTuple):
    """How many of each prompt's answers are returned: those whose tokens are likeliest, on average."""

    num_drawn: int
    num_kept: int


def read_best_of(body: GenerationBody, *, is_chat: bool) -> BestOf | None:
    """Return what `best_of` asks for; None: nothing. Raises BadRequestError if `n` or `stream` forbid it."""
    num_kept = body.n or 1
    if body.best_of in (None, num_kept):
        return None
    asked = f"`best_of` is {body.best_of} and `n` is {num_kept}: "
    if is_chat:
        raise BadRequestError(
            f"{asked}it is a field of /v1/completions: make `n` as large and choose among the answers",
            param="best_of",
            code="unsupported_parameter",
        )
    if body.best_of < num_kept:
        raise BadRequestError(f"{asked}make `best_of` at least as large as `n`", param="best_of")
    if body.stream:
        raise BadRequestError(
            f"{asked}the best answer is known only at the end, so leave out `stream`", param="best_of"
        )
    return BestOf(body.best_of, num_kept)


def count_choices(body: GenerationBody, best_of: BestOf | None, num_prompts: int) -> int:
    """Return how many answers each prompt has. Raises BadRequestError if all prompts have too many."""
    count = best_of.num_drawn if best_of else body.n or 1
    if num_prompts * count > MAX_SEQUENCES:
        raise BadRequestError(
            f"{num_prompts} prompts with {count} choices each are more than {MAX_SEQUENCES} sequences: "
            "split the request",
            param="prompt",
        )
    return count
