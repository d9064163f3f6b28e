"""OpenAI's former form of a call: `function_call` of a message, and a result of role `function`. Pure.

No chat template reads it, so these messages would be missing in the prompt. Clients have it in conversations
that they have kept.
"""

from collections.abc import Sequence
from typing import Any

from millrace_runtime.api.errors import BadRequestError

_RESULT_ROLE = "function"


def rename_former_calls(messages: Sequence[Any]) -> list[Any]:
    """Return the messages with former calls and their results as `tool_calls` and results of role `tool`.

    The former form has no ids: a result belongs to the call before it. Raises BadRequestError.
    """
    renamed: list[Any] = []
    call_id = ""
    for place, message in enumerate(messages):
        if _has_former_call(message):
            call_id = f"call{place:05d}"  # nine letters: Mistral's templates refuse others
            renamed.append(_rename_call(message, call_id, f"messages[{place}].function_call"))
        elif isinstance(message, dict) and message.get("role") == _RESULT_ROLE:
            renamed.append({**message, "role": "tool", "tool_call_id": call_id})
        else:
            renamed.append(message)
    return renamed


def _has_former_call(message: Any) -> bool:
    if not isinstance(message, dict) or message.get("tool_calls"):
        return False
    return message.get("function_call") is not None


def _rename_call(message: dict[str, Any], call_id: str, where: str) -> dict[str, Any]:
    function = message["function_call"]
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise BadRequestError(f'`{where}` is as {{"name": "f", "arguments": "{{}}"}}', param=where)
    others = {name: value for name, value in message.items() if name != "function_call"}
    return others | {"tool_calls": [{"id": call_id, "type": "function", "function": function}]}
