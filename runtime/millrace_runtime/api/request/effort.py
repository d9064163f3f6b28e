"""Whether a model reasons, and how much, as chat templates know it. Pure."""

from typing import Any, Literal

import msgspec

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
"""What OpenAI's type and vLLM's have."""


class ThinkingSwitch(msgspec.Struct):
    """Whether the model reasons, as Z.ai's and Anthropic's clients say it. A budget beside it is ignored."""

    type: Literal["enabled", "disabled", "adaptive"]


class ReasoningWish(msgspec.Struct, forbid_unknown_fields=True):
    """How much the model reasons, as OpenRouter's clients say it."""

    effort: Effort | None = None
    enabled: bool | None = None
    exclude: bool | None = None
    """Whether the client does not get the reasoning."""
    summary: Any = None
    """Ignored."""


def choose_variables(effort: str | None, *, thinks: bool | None = None) -> dict[str, object]:
    """Return the template's variables for a request's effort and switch. The switch wins; without both: none.

    `none` means no reasoning. What a template reads is its author's choice: `reasoning_effort` (gpt-oss) or
    `enable_thinking` (Qwen 3). It ignores a variable that it does not know.
    """
    chosen: dict[str, object] = {}
    if effort is not None:
        chosen = {"reasoning_effort": effort, "enable_thinking": effort != "none"}
    return chosen if thinks is None else chosen | {"enable_thinking": thinks}


def read_switches(
    enable_thinking: bool | None,  # noqa: FBT001  the field's value
    thinking: ThinkingSwitch | None,
    reasoning: ReasoningWish | None,
) -> bool | None:
    """Return what the first of these fields says that says something; None if none does."""
    if enable_thinking is not None:
        return enable_thinking
    if thinking is not None:
        return thinking.type != "disabled"
    return None if reasoning is None else reasoning.enabled
