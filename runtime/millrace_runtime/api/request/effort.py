"""How much a model is to reason, as chat templates know it."""


def choose_variables(effort: str | None) -> dict[str, object]:
    """Return the template's variables for a request's effort; none if it names no effort.

    `none` means no reasoning. What a template reads is its author's choice: `reasoning_effort` (gpt-oss) or
    `enable_thinking` (Qwen 3). It ignores a variable that it does not know.
    """
    if effort is None:
        return {}
    return {"reasoning_effort": effort, "enable_thinking": effort != "none"}
