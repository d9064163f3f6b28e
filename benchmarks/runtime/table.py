"""`python -m benchmarks.runtime.table RESULT`: the README's table of a run, in Markdown."""

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.runtime.report import render_range

MEANINGS = {
    "single": "one stream, 128 tokens in and 128 out: output tokens a second",
    "prefill": "one prompt of 1024 tokens: prompt tokens a second",
    "c8": "8 requests at once, 128 in and 64 out: output tokens a second",
    "c32": "32 requests at once, 128 in and 64 out: output tokens a second",
    "decode_over_memory_limit": "a billion bf16 weights, one stream: share of the memory's bandwidth used",
    "http_over_engine_single": "one stream, over HTTP / in process",
    "http_over_engine_c32": "32 requests at once, over HTTP / in process",
    "two_replicas_over_one_single": "two replicas on the same cores, one stream each: together / one alone",
    "two_replicas_over_one_c8": "two replicas on the same cores, 8 requests each: together / one alone",
    "start_seconds_over_python_peers": "a server's start to its first token: seconds, ours / a Python peer's",
}


def render_markdown(result: Mapping[str, Any]) -> Iterator[str]:
    """Yield the table's lines."""
    yield "| figure | what it is | median (range of the rounds) | over |"
    yield "|---|---|---|---|"
    for name, figure in result["figures"].items():
        over = figure.get("over", "")
        yield f"| `{name}` | {describe(name)} | {render_range(figure)} | {over} |"


def describe(name: str) -> str:
    """Return what a figure is."""
    if name in MEANINGS:
        return MEANINGS[name]
    case, precision, *_ = name.split("_")
    return f"{precision} weights, {MEANINGS[case]}"


def main(argv: list[str]) -> None:
    """Print the table of a result's file."""
    for line in render_markdown(json.loads(Path(argv[0]).read_text())):
        print(line)


if __name__ == "__main__":
    main(sys.argv[1:])
