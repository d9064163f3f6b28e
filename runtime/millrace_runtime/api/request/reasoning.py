"""Whether a model reasons, and how much, as chat templates know it. Pure."""

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
"""The values of OpenAI's type and of vLLM's."""
_SWITCHES = ("enable_thinking", "thinking")
"""The template's variables for whether the model reasons. DeepSeek's templates read the second one."""


class ThinkingSwitch(msgspec.Struct):
    """Whether the model reasons, as Z.ai's and Anthropic's clients say it. A budget beside it is ignored."""

    type: Literal["enabled", "disabled", "adaptive"]


class ReasoningWish(msgspec.Struct, forbid_unknown_fields=True):
    """How much the model reasons, as OpenRouter's clients say it."""

    effort: Effort | None = None
    enabled: bool | None = None
    exclude: bool | None = None
    """Whether the client does not get the reasoning."""
    max_tokens: int | None = None
    """A budget. It says that the model reasons, and does not bind it."""
    summary: Any = None
    """Ignored."""

    @property
    def thinks(self) -> bool | None:
        """Whether the model reasons, without a look at the effort; None if no field says so."""
        if self.enabled is None and self.max_tokens is not None:
            return self.max_tokens > 0
        return self.enabled


def choose_variables(
    effort: str | None, *, thinks: bool | None = None, own: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the template's variables for a request's effort and switch. The switch overrides the effort.

    `own` are variables that the client sets itself: they override both. An effort of `none` means no
    reasoning. A template ignores the variables that its author did not use.
    """
    chosen: dict[str, Any] = {} if effort is None else {"reasoning_effort": effort}
    if thinks is None and effort is not None:
        thinks = effort != "none"
    if thinks is not None and not any(name in (own or {}) for name in _SWITCHES):
        chosen |= dict.fromkeys(_SWITCHES, thinks)
    return chosen | dict(own or {})


def read_switches(
    enable_thinking: bool | None,  # noqa: FBT001  the field's value
    thinking: ThinkingSwitch | None,
    reasoning: ReasoningWish | None,
) -> bool | None:
    """Return whether the model reasons, by the first of these fields that is set; None if none says so."""
    if enable_thinking is not None:
        return enable_thinking
    if thinking is not None:
        return thinking.type != "disabled"
    return None if reasoning is None else reasoning.thinks
