"""What a run prints, and the published table of it."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.record import publish
from benchmarks.runtime.__main__ import build_parser, read_choice
from benchmarks.runtime.errors import UsageError
from benchmarks.runtime.figures import FORMER, OURS, Manner, Row, spread
from benchmarks.runtime.models.subjects import LLAMA, SUBJECTS
from benchmarks.runtime.published import AIMS, list_figures
from benchmarks.runtime.report import (
    ALONE,
    read_rates,
    render_ratios,
    render_rows,
    render_spread,
    render_table,
)
from benchmarks.runtime.table import MEANINGS, render_prose, render_table_rows

HTTP, LIBRARY = Manner.HTTP, Manner.LIBRARY
RATES = {
    Row("single", "bf16", OURS, HTTP): [45.0, 50.0],
    Row("single", "bf16", OURS, LIBRARY): [50.0, 50.0],
    Row("single", "bf16", "llama.cpp", HTTP): [100.0, 100.0],
    Row("c8", "int8", "llama.cpp", HTTP): [100.0, 100.0],
}


def build_result(rates: dict[Row, list[float]]) -> dict[str, Any]:
    return {
        "date": "2026-11-21",
        "machine": {
            "cpu": "Some CPU",
            "cpu_model": "family 1",
            "cores": 2,
            "flags": ["avx2"],
            "busy_percent_of_others": {"median": 1.0, "highest": 12.5},
        },
        "model": "Llama's shape, 134.5 million weights, drawn at random",
        "rounds": 2,
        "engines": {OURS: "abc", "llama.cpp": "1.0"},
        "left_out": {"vllm bf16": "absent: $PEERS/venvs/vllm is not there"},
        "rows": render_rows(rates),
        "start_seconds": {OURS: {"median": 3.0, "lowest": 2.5, "highest": 4.0}},
        "figures": render_ratios(LLAMA, rates),
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
        "rounds": [45.0, 50.0],
    }


def test_figures_are_those_that_both_sides_were_measured_for() -> None:
    assert render_ratios(LLAMA, RATES) == {
        "single_bf16_over_best": {
            "median": 0.475,
            "lowest": 0.45,
            "highest": 0.5,
            "rounds": [0.45, 0.5],
            "over": "llama.cpp over HTTP",
        },
        "http_over_engine_single_bf16": {
            "median": 0.95,
            "lowest": 0.9,
            "highest": 1.0,
            "rounds": [0.9, 1.0],
        },
    }


def test_http_is_put_over_the_engine_at_every_precision_that_both_were_measured_at() -> None:
    rates = {Row("c32", "int4", OURS, manner): [rate] for manner, rate in ((HTTP, 9.0), (LIBRARY, 10.0))}
    assert list(render_ratios(LLAMA, rates)) == ["http_over_engine_c32_int4"]


def test_the_figures_follow_from_the_rounds_that_a_result_keeps() -> None:
    assert render_ratios(LLAMA, read_rates(render_rows(RATES))) == render_ratios(LLAMA, RATES)


def test_the_table_names_engines_what_was_left_out_and_every_row() -> None:
    text = "\n".join(render_table(build_result(RATES)))
    assert "Some CPU (family 1), 2 cores, avx2" in text
    assert "others kept 1.0 % of it busy, 12.5 % in the worst turn" in text
    assert "llama.cpp 1.0" in text
    assert "left out: vllm bf16: absent" in text
    assert "47.5 (45.0–50.0) tokens/s" in text
    assert "(0.45–0.50) over llama.cpp over HTTP" in text
    assert "3.0 (2.5–4.0) s" in text
    assert ALONE not in text


def test_the_table_says_how_many_bytes_the_memory_limit_is_of() -> None:
    figure = render_spread(spread([0.9])) | {"bytes_per_token": 2_085_228_544}
    result = build_result(RATES) | {"figures": {"decode_over_memory_limit": figure}}
    assert "0.90 (0.90–0.90), 2085228544 bytes a token" in "\n".join(render_table(result))


@pytest.mark.parametrize(
    ("name", "facts", "told"),
    [
        (
            "ngram_single_over_off",
            {"accepted_share": 0.59},
            ", 0.59 of the drafted tokens held, aim at least",
        ),
        ("itl_p99_beside_prefill_over_alone", {"target_ms": 41.5}, ", target 41.5 ms, aim at most 2"),
    ],
)
def test_the_table_says_what_explains_a_figure(name: str, facts: dict[str, float], told: str) -> None:
    result = build_result(RATES) | {"figures": {name: render_spread(spread([1.9])) | facts}}
    assert f"1.90 (1.90–1.90){told}" in "\n".join(render_table(result))


def test_chats_are_put_over_the_best_server() -> None:
    speeds = {OURS: 30.0, "vllm": 20.0, "llama.cpp": 10.0}
    rates = {Row("shared_prefix", "bf16", engine, HTTP): [rate] for engine, rate in speeds.items()}
    (figure,) = render_ratios(LLAMA, rates).items()
    assert (figure[0], figure[1]["median"], figure[1]["over"]) == (
        "shared_prefix_over_best",
        1.5,
        "vllm over HTTP",
    )


def test_a_run_that_ours_ended_says_so() -> None:
    assert "ended early, as ours failed: out" in "\n".join(
        render_table(build_result(RATES) | {"failed": "out"})
    )


def test_a_run_without_peers_claims_no_ratio() -> None:
    alone = {row: rates for row, rates in RATES.items() if row.engine == OURS}
    assert ALONE in "\n".join(render_table(build_result(alone)))


def test_the_readmes_table_says_what_each_figure_is() -> None:
    lines = list(render_table_rows(build_result(RATES)))
    assert lines[2].startswith("| `single_bf16_over_best` | bf16 weights, one stream, 128 tokens in")
    assert lines[2].endswith("| llama.cpp over HTTP |  |")
    assert lines[3].startswith("| `http_over_engine_single_bf16` | bf16 weights, one stream: over HTTP /")


def test_every_figure_that_a_run_can_have_is_described() -> None:
    assert {name for subject in SUBJECTS.values() for name in list_figures(subject)} == set(MEANINGS)


def test_ours_is_put_over_its_former_commit_in_each_row_and_that_is_no_peer() -> None:
    rates = {Row("c8", "bf16", engine, LIBRARY): [rate] for engine, rate in ((OURS, 9.0), (FORMER, 10.0))}
    (figure,) = render_ratios(LLAMA, rates).items()
    assert (figure[0], figure[1]["median"]) == ("c8_bf16_engine_over_itself", 0.9)
    assert not AIMS[figure[0]].is_met(0.9)


def test_figures_of_other_shapes_name_them() -> None:
    rates = {Row("c32", "bf16", engine, HTTP): [10.0] for engine in (OURS, FORMER, "vllm")}
    for name in ("qwen3", "moe"):
        assert list(render_ratios(SUBJECTS[name], rates)) == [
            f"{name}_c32_over_best",
            f"{name}_c32_over_itself",
        ]
        assert str(AIMS[f"{name}_c32_over_best"]) == "at least 1.1"


def test_the_readmes_prose_is_the_runs() -> None:
    text = " ".join(render_prose(build_result(RATES)))
    assert "2026-11-21 at commit abc" in text
    assert "134.5 million weights" in text
    assert "2 cores of Some CPU (family 1) with avx2" in text
    assert "2 rounds" in text
    assert "llama.cpp 1.0" in text
    assert max(map(len, render_prose(build_result(RATES)))) <= 120
    assert "aim" not in text
    slow = render_spread(spread([0.9]))
    result = build_result(RATES) | {"figures": {"http_over_engine_c32_int8": slow}}
    assert "`http_over_engine_c32_int8` misses its aim" in " ".join(render_prose(result))
    assert AIMS["mask_ms_p99"].is_met(0.9)
    assert not AIMS["mask_ms_p99"].is_met(1.1)


def test_a_part_that_the_flags_leave_out_is_named() -> None:
    choice = read_choice(build_parser().parse_args(["--only", "single,start", "--precisions", "bf16,int8"]))
    assert set(choice.list_unwanted()) == {
        *(f"part {part}" for part in ("prefill", "c8", "c32", "memory", "replicas", "rows", "grammars")),
        *(f"part {part}" for part in ("chats", "turns", "drafts", "beside", "waves", "kv")),
        "part formats",
        "precision int4",
    }
    without_ours = read_choice(build_parser().parse_args(["--engines", "llama.cpp"]))
    assert {"part memory", "part replicas", "part start", "engine ours"} <= set(without_ours.list_unwanted())
    assert not list(read_choice(build_parser().parse_args([])).list_unwanted())


def test_a_result_that_can_not_be_written_is_told_before_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        build_parser().parse_args(["--output", str(tmp_path / "none" / "run.json")])
    assert "name a file in a folder that exists" in capsys.readouterr().err
    path = build_parser().parse_args(["--output", str(tmp_path / "run.json")]).output
    assert not path.exists()
    publish({"benchmark": "runtime"}, path)
    assert json.loads(path.read_text()) == {"benchmark": "runtime"}


@pytest.mark.parametrize("flag", ["--only", "--engines", "--precisions"])
def test_a_name_that_does_not_exist_is_refused_with_those_that_do(flag: str) -> None:
    with pytest.raises(UsageError, match=f"{flag}: no nonsense; there are "):
        read_choice(build_parser().parse_args([flag, "nonsense"]))


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (("--against", "nonsense"), "no commit nonsense; name one that `git log` shows"),
        (("--against", "HEAD", "--engines", "llama.cpp"), "add ours to --engines"),
        (("--shape", "moe", "--only", "prefill"), "--only: no prefill; there are single, c32"),
    ],
)
def test_what_can_not_be_compared_is_refused(argv: tuple[str, ...], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        read_choice(build_parser().parse_args(argv))


def test_quick_is_one_round() -> None:
    choice = read_choice(build_parser().parse_args(["--quick", "--engines", "ours,vllm"]))
    assert (choice.num_rounds, choice.is_quick) == (1, True)
    assert choice.has_engine(OURS)
    assert not choice.has_engine("llama.cpp")
