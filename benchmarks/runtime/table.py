"""`python -m benchmarks.runtime.table RESULT`: a run as benchmarks/README.md has it: prose, then table."""

import json
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.runtime.figures import FORMER, OURS
from benchmarks.runtime.models.subjects import SUBJECTS
from benchmarks.runtime.published import (
    AIMS,
    CONTINUOUS,
    DRAFTS_C32,
    DRAFTS_FAIL,
    DRAFTS_SINGLE,
    ITL_BESIDE,
    KV_INT8,
    LOAD_SECONDS,
    MANNERS_COMPARED,
    OVER_OWN,
    SECOND_TURN,
    SHARED_PREFIX_OVER_BEST,
    TTFT_BESIDE,
    name_over_best,
    name_over_engine,
    name_over_itself,
    name_over_own,
)
from benchmarks.runtime.report import describe_cpu, render_range
from benchmarks.runtime.workload import PRECISIONS

CASES = {
    "single": "one stream, 128 tokens in and 128 out",
    "prefill": "one prompt of 1024 tokens",
    "c8": "8 requests at once, 128 in and 64 out",
    "c32": "32 requests at once, 128 in and 64 out",
}


def describe_row(case: str, precision: str) -> str:
    """Return what an engine is asked, and which rate counts."""
    unit = "prompt" if case == "prefill" else "output"
    return f"{precision} weights, {CASES[case]}: {unit} tokens a second"


MEANINGS = {
    "decode_over_memory_limit": "a billion bf16 weights, one stream: share of the memory's bandwidth used",
    "two_replicas_over_one_single": "two replicas on the same cores, one stream each: together / one alone",
    "two_replicas_over_one_c8": "two replicas on the same cores, 8 requests each: together / one alone",
    "json_schema_over_free": "16 rows, each with a JSON schema of its own: output tokens a second / without",
    "json_schema_over_vllm": "the same rows: output tokens a second / those of vLLM with the same schemas",
    "sampling_all_over_greedy": "32 rows with penalties, filters and a bias: output tokens a second / greedy",
    "schema_compile_ms_p50": "500 schemas, each compiled to its first mask: ms of CPU time, the median",
    "schema_compile_ms_p99": "the same, the 99th percentile",
    "mask_ms_p99": "the mask of a token, over texts of these schemas: ms of CPU time, the 99th percentile",
    "lock_held_ms": "the longest call of a grammar's life that keeps Python's global lock: ms of CPU time",
    SHARED_PREFIX_OVER_BEST: "chats of 8 tenants, each turn with its history: output tokens a second",
    SECOND_TURN: "2,048 tokens of history and 50 new ones: time to the first token / that of the first turn",
    DRAFTS_SINGLE: "one stream whose drafts hold at 8 of 10 places: output tokens a second / without drafts",
    DRAFTS_FAIL: "one stream whose drafts are all wrong: output tokens a second / without drafts",
    DRAFTS_C32: "32 streams whose drafts hold at 8 of 10 places: output tokens a second / without drafts",
    ITL_BESIDE: "8 streams beside a prompt of 7,168 tokens: p99 of the time between tokens / without it",
    TTFT_BESIDE: "that prompt's time to its first token / without the streams",
    CONTINUOUS: "128 requests of mixed lengths, 8 at once: output tokens a second / in waves of 8",
    KV_INT8: "decode of 8 sequences of 8,064 tokens: KV cache in 8 bits / in bfloat16",
    **{
        name_over_own(
            name, beside, case
        ): f"a checkpoint in {name}, {case}: output tokens a second / {beside} of ours"
        for (name, case), beside in OVER_OWN.items()
    },
    **{
        f"{name}_{case}_over_best": f"a checkpoint in {name}, {case}: output tokens a second"
        for name, case in OVER_OWN
        if name != "fp8"
    },
    **{
        LOAD_SECONDS.format(name): f"a checkpoint in {name}: seconds to load / those of bfloat16"
        for name in ("awq", "w8a8", "fp8")
    },
    "start_seconds_over_python_peers": "a server's start to its first token: seconds, ours / a Python peer's",
    **{
        name_over_engine(case, precision): (
            f"{precision} weights, {CASES[case].partition(',')[0]}: over HTTP / in process"
        )
        for case in MANNERS_COMPARED
        for precision in PRECISIONS
    },
    **{
        name_over_best(subject, case, precision): describe_row(case, precision)
        for subject in SUBJECTS.values()
        for case, precision in subject.list_rows()
    },
    **{
        name_over_itself(
            subject, case, precision, manner
        ): f"{describe_row(case, precision)}, {manner}, ours / our former commit's"
        for subject in SUBJECTS.values()
        for case, precision, manner in subject.list_own_rows()
    },
}
"""What each figure is."""
WIDTH = 120


def render_prose(result: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines that say what the run was, and which of its figures miss their aim."""
    machine, versions = result["machine"], result["engines"]
    peers = [f"{name} {versions[name]}" for name in versions if name not in (OURS, FORMER, "torch")]
    text = (
        f"Measured on {result['date']} at commit {versions[OURS]}, on {machine['cores']} cores of "
        f"{describe_cpu(machine)} with {', '.join(machine['flags'])} and no GPU. "
        f"The model: {result['model']}. {result['rounds']} rounds, all engines in turn. "
        f"Beside us ran {', '.join(peers) or 'nobody'}."
        + (f" {FORMER.capitalize()} is our commit {versions[FORMER]}." if FORMER in versions else "")
    )
    missing = [
        f"`{name}`"
        for name, figure in result["figures"].items()
        if name in AIMS and not AIMS[name].is_met(figure["median"])
    ]
    if missing:
        verb = "misses its aim" if len(missing) == 1 else "miss their aims"
        text += f" {', '.join(missing)} {verb}."
    yield from textwrap.wrap(text, WIDTH, break_long_words=False, break_on_hyphens=False)


def render_table_rows(result: Mapping[str, Any]) -> Iterator[str]:
    """Yield the table's lines."""
    yield "| figure | what it is | median (range of the rounds) | over | aim |"
    yield "|---|---|---|---|---|"
    for name, figure in result["figures"].items():
        over, aim = figure.get("over", ""), AIMS.get(name, "")
        yield f"| `{name}` | {MEANINGS[name]} | {render_range(figure)} | {over} | {aim} |"


def main(argv: list[str]) -> None:
    """Print a result's file as `benchmarks/README.md` has it."""
    result = json.loads(Path(argv[0]).read_text())
    for line in (*render_prose(result), "", *render_table_rows(result)):
        print(line)


if __name__ == "__main__":
    main(sys.argv[1:])
