"""Reads how a client wants tokens to be drawn. Pure."""

from collections.abc import Mapping
from typing import Any

from millrace_runtime.api.errors import BadRequestError
from millrace_runtime.protocol.sampling import Sampling


def read_bias(bias: Mapping[str, float]) -> dict[int, float]:
    """Return what is added to the logits, by token id. In JSON the ids are keys, so they are texts."""
    try:
        return {int(token): value for token, value in bias.items()}
    except ValueError:
        raise BadRequestError("`logit_bias` has token ids as its keys", param="logit_bias") from None


def build_sampling(fields: dict[str, Any]) -> Sampling:
    """Return the sampling with what clients write in several ways in one."""
    if fields.get("top_p") == 0:  # of the smallest set of tokens, at least one is left: the most likely one
        fields = fields | {"temperature": 0.0, "top_p": 1.0}
    return Sampling(**fields | {"top_k": max(0, fields.get("top_k", 0))})
