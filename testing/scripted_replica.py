"""`python -m testing.scripted_replica SCRIPT FOLDER [TOKENS]`: a replica whose model says what a script says.

SCRIPT is a JSON object of cues and answers. FOLDER, which may be empty, gets the model's tokenizer. A request
may have TOKENS in all. When the replica is ready, the command prints its URL. It ends with its input.
"""

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

from millrace_runtime.api.settings import ApiSettings
from millrace_runtime.chat.parsers.registry import choose_reasoning_format, choose_tool_format
from testing.http_replica import HttpReplica, serve_http
from testing.scripted_engine import MAX_MODEL_LENGTH, START_TOKEN, run_engine
from testing.text_model import build_byte_level, write_model

SERVED_NAME = "scripted"
MARKERS = ("<tool_call>", "</tool_call>", "<think>", "</think>")
"""Tokens of their own, as in Qwen's models: behind the first one the JSON of calls is bound."""
TEMPLATE = """\
{%- if tools %}<|start|>system
Call a tool by <tool_call>{"name": …, "arguments": …}</tool_call>:
{%- for tool in tools %}
{{ tool | tojson }}
{%- endfor %}<|end|>
{% endif %}
{%- for message in messages %}<|start|>{{ message.role }}
{% if message.reasoning_content %}<think>
{{ message.reasoning_content }}
</think>

{% endif %}{{ message.content }}
{%- for call in message.tool_calls or [] %}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}<|end|>
{% endfor %}
{%- if add_generation_prompt %}<|start|>assistant
{% endif %}"""


@contextlib.asynccontextmanager
async def serve_script(
    folder: Path,
    answers: Mapping[str, str],
    max_model_length: int = MAX_MODEL_LENGTH,
    *,
    tool_format: str | None = None,
    has_drafts: bool = False,
) -> AsyncIterator[HttpReplica]:
    """Write the model's tokenizer to a folder, and serve it until the context ends.

    Without `tool_format` calls are read as the template writes them. With `has_drafts` each step guesses some
    tokens, now and then a wrong one.
    """
    native = build_byte_level()
    native.add_special_tokens([START_TOKEN])
    native.add_tokens(list(MARKERS))
    model = write_model(folder, native, TEMPLATE)
    settings = ApiSettings(
        served_name=SERVED_NAME,
        tool_format=tool_format or choose_tool_format(TEMPLATE),
        reasoning_format=choose_reasoning_format(TEMPLATE),
    )
    with run_engine(model, answers, max_model_length, has_drafts=has_drafts) as engine:
        async with serve_http(model, engine, settings) as replica:
            await replica.wait_ready()
            yield replica


async def run(folder: Path, answers: Mapping[str, str], max_model_length: int) -> None:
    """Serve until the standard input ends."""
    async with serve_script(folder, answers, max_model_length) as replica:
        print(replica.url, flush=True)
        await asyncio.to_thread(sys.stdin.read)


def main(script: str, folder: str, max_model_length: str = str(MAX_MODEL_LENGTH)) -> None:
    """Run the command."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    asyncio.run(run(Path(folder), json.loads(Path(script).read_text()), int(max_model_length)))


if __name__ == "__main__":
    main(*sys.argv[1:])
