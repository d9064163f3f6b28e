"""A replica of which each answer is a given text, with tools and reasoning in its template."""

import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from millrace_runtime.api.settings import ApiSettings
from testing.text_model import build_byte_level, write_model
from tests.runtime.api.served import Served, serve

SCHEMA = {"type": "object", "properties": {"who": {"type": "string"}}}
TEMPLATE = (
    "{% if tools %}<tool_call>{% endif %}"
    "{% for m in messages %}{{ m.role }}:{{ m.content }}"
    "{{ m.tool_calls | tojson if m.tool_calls }}\n{% endfor %}"
    "{% if thinks %}<think>\n{% endif %}"
)
CALL = '<tool_call>{"name":"find","arguments":{"who":"Zoë"}}</tool_call>'


@contextlib.asynccontextmanager
async def serve_answer(
    folder: Path,
    text: str,
    *,
    tool_format: str = "hermes",
    specials: Sequence[str] = (),
    markers: Sequence[str] = (),
) -> AsyncIterator[Served]:
    """A replica of which each answer is this text."""
    native = build_byte_level()
    native.add_special_tokens(list(specials))
    native.add_tokens(list(markers))
    model = write_model(folder, native, TEMPLATE)
    settings = ApiSettings(served_name="tiny", tool_format=tool_format, reasoning_format="think")
    async with serve(model, settings) as served:
        [tokens] = served.replica.tokenizer.encode_batch([text], add_special_tokens=False)
        served.engine.reply = [*tokens, *served.replica.tokenizer.end_token_ids]
        yield served
