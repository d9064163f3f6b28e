"""What a run prints, and the README's table of it."""

from typing import Any

import pytest

from benchmarks.runtime.__main__ import build_parser, read_choice
from benchmarks.runtime.errors import UsageError
from benchmarks.runtime.figures import OURS, Manner, Row
from benchmarks.runtime.report import ALONE, COMPARED, render_ratios, render_rows, render_table
from benchmarks.runtime.table import MEANINGS, describe, render_markdown

HTTP, LIBRARY = Manner.HTTP, Manner.LIBRARY
RATES = {
    Row("single", "bf16", OURS, HTTP): [45.0, 50.0],
    Row("single", "bf16", OURS, LIBRARY): [50.0, 50.0],
    Row("single", "bf16", "llama.cpp", HTTP): [100.0, 100.0],
    Row("c8", "int8", "llama.cpp", HTTP): [100.0, 100.0],
}


def build_result(rates: dict[Row, list[float]]) -> dict[str, Any]:
    return {
        "machine": {"cpu": "Some CPU", "cores": 2, "flags": ["avx2"]},
        "engines": {OURS: "abc", "llama.cpp": "1.0"},
        "left_out": {"vllm bf16": "absent: $PEERS/venvs/vllm is not there"},
        "rows": render_rows(rates),
        "start_seconds": {OURS: {"median": 3.0, "lowest": 2.5, "highest": 4.0}},
        "figures": render_ratios(rates),
    }


def test_a_row_holds_the_median_and_the_range_over_the_rounds() -> None:
    assert render_rows(RATES)[0] == {
        "case": "single",
        "precision": "bf16",
        "engine": "millrace",
        "manner": "over HTTP",
        "median": 47.5,
        "lowest": 45.0,
        "highest": 50.0,
    }


def test_figures_are_those_that_both_sides_were_measured_for() -> None:
    assert render_ratios(RATES) == {
        "single_bf16_over_best": {
            "median": 0.475,
            "lowest": 0.45,
            "highest": 0.5,
            "over": "llama.cpp over HTTP",
        },
        "http_over_engine_single": {"median": 0.95, "lowest": 0.9, "highest": 1.0},
    }


def test_the_table_names_engines_what_was_left_out_and_every_row() -> None:
    text = "\n".join(render_table(build_result(RATES)))
    assert "Some CPU, 2 cores, avx2" in text
    assert "llama.cpp 1.0" in text
    assert "left out: vllm bf16: absent" in text
    assert "47.5 (45.0–50.0) tokens/s" in text
    assert "(0.45–0.50) over llama.cpp over HTTP" in text
    assert "3.0 (2.5–4.0) s" in text
    assert ALONE not in text


def test_a_run_without_peers_claims_no_ratio() -> None:
    alone = {row: rates for row, rates in RATES.items() if row.engine == OURS}
    assert ALONE in "\n".join(render_table(build_result(alone)))


def test_the_readmes_table_says_what_each_figure_is() -> None:
    lines = list(render_markdown(build_result(RATES)))
    assert lines[2].startswith("| `single_bf16_over_best` | bf16 weights, one stream, 128 tokens in")
    assert lines[2].endswith("| llama.cpp over HTTP |")
    assert lines[3].startswith("| `http_over_engine_single` | one stream, over HTTP / in process |")


def test_every_figure_that_a_run_can_have_is_described() -> None:
    names = [f"{case}_{precision}_over_best" for case, precisions in COMPARED for precision in precisions]
    assert all(describe(name) for name in [*names, *(name for name in MEANINGS if "_" in name)])


@pytest.mark.parametrize("flag", ["--only", "--engines", "--precisions"])
def test_a_name_that_does_not_exist_is_refused_with_those_that_do(flag: str) -> None:
    with pytest.raises(UsageError, match=f"{flag}: no nonsense; there are "):
        read_choice(build_parser().parse_args([flag, "nonsense"]))


def test_quick_is_one_round() -> None:
    choice = read_choice(build_parser().parse_args(["--quick", "--engines", "ours,vllm"]))
    assert (choice.num_rounds, choice.is_quick) == (1, True)
    assert choice.has_engine(OURS)
    assert not choice.has_engine("llama.cpp")
