"""Every figure in the docs is one that a committed benchmark's run printed."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks.autoscaler import picture as autoscaler_picture
from benchmarks.autoscaler import table as autoscaler_table
from benchmarks.gateway.table import render_markdown as render_gateways
from benchmarks.routing.__main__ import render_rows as render_routing_rows
from benchmarks.routing.live.fairness import render_rows as render_fairness_rows
from benchmarks.runtime.models.subjects import LLAMA, SUBJECTS, Subject
from benchmarks.runtime.published import FIGURES, name_over_best
from benchmarks.runtime.report import read_rates, render_ratios
from benchmarks.runtime.table import render_prose, render_table_rows

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
FIGURES_PAGE = (ROOT / "benchmarks" / "README.md").read_text()
START_PAGE = (ROOT / "docs" / "get-started.md").read_text()
RUNTIME = ROOT / "benchmarks" / "results" / "runtime.json"
RUNS = sorted(RUNTIME.parent.glob("runtime*.json"))
"""A run of each shape that was published."""


def test_the_paths_figures_are_the_committed_runs() -> None:
    run = json.loads((ROOT / "benchmarks" / "results" / "path.json").read_text())
    section = FIGURES_PAGE.partition("## The whole path\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \|[^|]*\| ([^|]+) \|", section, re.MULTILINE)
    assert rows
    assert {name: float(figure.replace(",", "")) for name, figure in rows} == {
        name: run[name] for name, _ in rows
    }


def test_the_readmes_few_figures_are_the_committed_runs() -> None:
    results = ROOT / "benchmarks" / "results"
    runtime, path, simulated, real = (
        json.loads((results / f"{name}.json").read_text())
        for name in ("runtime", "path", "autoscaler", "scaling")
    )
    ratios = [figure["median"] for name, figure in runtime["figures"].items() if name.endswith("_over_best")]
    text = " ".join(README.split())
    for told in (
        f"{min(ratios):.2f} to {max(ratios):.2f} times as fast",
        f"first token it takes {path['apply_to_token_seconds']} s",
        f"a later start takes [{path['second_up_seconds']} s]",
        f"a ramp of {path['ramp_streams']:,} streams lost {path['truncated_streams']}.",
        f"with {simulated['replica_hours_over_best_peer']} of the replica-hours of the best other rule",
        f"it took {real['scrapes_5s']['replica_seconds_over_best_hpa']:.2f} times as many",
    ):
        assert told in text, told


def test_what_is_said_that_make_up_takes_is_the_committed_runs() -> None:
    run = json.loads((ROOT / "benchmarks" / "results" / "path.json").read_text())
    disk = run["first_up_disk_bytes"]
    section = START_PAGE.partition("## What `make up` takes\n")[2].partition("\n## ")[0]
    told = re.findall(r"^\| .* \| ([\d.]+) GB \|$", section, re.MULTILINE)
    measured = [run[f"{name}_bytes"] for name in ("first_up_download", "first_up_memory", "running_memory")]
    measured += [disk[name] for name in ("environment", "go_builds", "go_modules", "parts")]
    assert told == [f"{num_bytes / 1e9:.1f}" for num_bytes in measured]


def test_the_docs_steps_of_make_up_are_the_committed_runs() -> None:
    run = json.loads((ROOT / "benchmarks" / "results" / "path.json").read_text())
    first, later = run["first_up_steps"], run["second_up_steps"]
    text = " ".join((ROOT / "docs" / "development.md").read_text().split())
    parts, venv = first["parts"], first["venv"]
    assert f"took {parts:.0f} s of them, and at the same time the environment took {venv:.0f} s" in text
    assert ("go" in first) == ("after fetching Go" in text)
    told = f"the example takes {later['example']} s of the {sum(later.values()):.1f} s of all steps"
    assert told in text


def test_the_docs_cost_of_a_step_is_the_committed_runs() -> None:
    run = json.loads((ROOT / "benchmarks" / "results" / "engine.json").read_text())
    text = " ".join((ROOT / "docs" / "development.md").read_text().split())
    assert f"has {run['step_microseconds_32']} µs with 32" in text
    assert f"and {run['step_microseconds_256']} µs with 256" in text


def test_routing_and_fairness_on_real_replicas_are_the_committed_runs() -> None:
    results = ROOT / "benchmarks" / "results"
    section = FIGURES_PAGE.partition("## On real replicas\n")[2].partition("\n## ")[0]
    text = " ".join(section.split())
    for name, render in (("routing-live", render_routing_rows), ("gateway-fairness", render_fairness_rows)):
        run = json.loads((results / f"{name}.json").read_text())
        assert "\n".join(render(run["rows"])) in section
        assert f"on {run['date']} at commit {run['commit']}" in text


def test_the_comparison_of_routing_is_the_committed_run() -> None:
    run = json.loads((ROOT / "benchmarks" / "results" / "routing.json").read_text())
    assert run["simulated"]
    section = FIGURES_PAGE.partition("## The right replica, simulated\n")[2].partition("\n## ")[0]
    assert "\n".join(render_routing_rows(run["rows"])) in section
    text = " ".join(section.split())
    assert f"on {run['date']} at commit {run['commit']}, with {run['seeds']} seeds" in text


def test_the_gateways_figures_are_the_committed_runs() -> None:
    run, disruptions = (
        json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())
        for name in ("gateway", "gateway-disruptions")
    )
    section = (ROOT / "benchmarks" / "gateway" / "README.md").read_text().partition("## Figures\n")[2]
    assert render_gateways(run["medians"]) in section
    text = " ".join(section.split())
    assert f"on {run['date']} at commit {run['commit']}" in text
    for told in (
        f"{run['comparison']['requests_over_best_router']:.2f} times the better",
        f"{run['comparison']['added_p50_ms_over_best_router']:.2f} ms more at the median",
        f"{disruptions['streams']['complete']:,} of 10,000 streams",
        f"{disruptions['held']['complete']:,} of 10,000 held requests",
    ):
        assert told in text, told


def usual_runs(run: dict[str, Any], policy: str, names: tuple[str, ...]) -> list[dict[str, Any]]:
    usual = {"policy": policy, "cold_start": None, "scrape": 5.0, "fault": ""}
    return [one for one in run["runs"] if usual.items() <= one.items() and one["workload"] in names]


def average_ours(run: dict[str, Any]) -> float:
    counts = [one["average_replicas"] for one in usual_runs(run, "millrace", ("W1", "W2", "W4", "W5"))]
    assert len(counts) == 4
    return sum(counts) / 4


def most_reversals(run: dict[str, Any], policy: str) -> int:
    return max(one["reversals"] for one in usual_runs(run, policy, ("W4", "W5")))


def worst_in_both(run: dict[str, Any]) -> float:
    """Return the share in time where cold starts and the scrape interval are long at once."""
    slow = {"policy": "millrace", "cold_start": 300.0, "scrape": 30.0}
    return min(one["attainment"] for one in run["runs"] if slow.items() <= one.items())


def lost(run: dict[str, Any], what: str) -> str:
    """Return the points that are lost by longer cold starts or scrape intervals."""
    return f"{100 * run[f'attainment_lost_{what}']:.2f}"


def test_the_comparison_of_autoscalers_is_the_committed_run() -> None:
    run = json.loads((ROOT / "benchmarks" / "results" / "autoscaler.json").read_text())
    assert not run["short"]
    assert "\n".join(autoscaler_table.render_table_rows(run)) in FIGURES_PAGE
    text = " ".join(FIGURES_PAGE.split())
    assert autoscaler_table.render_prose(run) in text
    picture = (ROOT / "docs" / "pictures" / "autoscaler.png").read_bytes()
    assert autoscaler_picture.name_run(run).encode() in picture, "draw it anew: docs/development.md has how"
    for told in (
        f"`replica_hours_over_best_peer` is {run['replica_hours_over_best_peer']} (",
        f"`replica_hours_over_hpa_queue` is {run['replica_hours_over_hpa_queue']} (",
        f"knows the future it is {run['replica_hours_over_clairvoyant']} (",
        f"on the ramp {run['w1_average_replicas']} replicas (",
        f"it is {run['worst_over_tuned_peer']} where that is worst (",
        f"{run['reversals_per_day']:.0f} times a day where it is worst (",
        f"is {run['best_peer']} with a factor of {run['peers'][run['best_peer']]['knob']}:",
        f"A fixed count of {run['peers']['static']['knob']} comes",
        f"where that is worst, and with scrapes every 30 s instead of 5 s {lost(run, 'scrape')} (",
        f"instead of 30 s {lost(run, 'cold_start')} points fewer",
        f"{100 * worst_in_both(run):.2f} % are in time on W2",
        f"keda with {run['peers']['keda']['average_replicas']}.",
        f"with {average_ours(run):.2f} replicas on average",
        f"turns back {most_reversals(run, 'clairvoyant')} times",
    ):
        assert told in text, told


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.stem)
def test_the_comparison_with_other_engines_is_the_committed_runs(path: Path) -> None:
    run = json.loads(path.read_text())
    assert not run["is_quick"]
    assert "failed" not in run
    assert "\n".join([*render_prose(run), "", *render_table_rows(run)]) in FIGURES_PAGE


def test_a_published_run_left_nothing_out() -> None:
    run = json.loads(RUNTIME.read_text())
    assert tuple(run["figures"]) == FIGURES
    assert run["rounds"] >= 5
    assert run["start_seconds"]


def subject_of(run: dict[str, Any]) -> Subject:
    return SUBJECTS[run.get("shape", LLAMA.name)]


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.stem)
def test_a_published_run_of_any_shape_has_its_ratios_over_peers(path: Path) -> None:
    run = json.loads(path.read_text())
    assert {name_over_best(subject_of(run), *row) for row in subject_of(run).list_rows()} <= set(
        run["figures"]
    )


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.stem)
def test_a_published_runs_ratios_follow_from_its_rounds(path: Path) -> None:
    run = json.loads(path.read_text())
    for name, again in render_ratios(subject_of(run), read_rates(run["rows"])).items():
        assert run["figures"][name]["rounds"] == pytest.approx(again["rounds"], abs=0.002), name


def test_no_comparison_is_claimed_that_is_not_committed() -> None:
    claimed = re.findall(r"`\w+_over_(?:best|memory_limit|python_peers)`", FIGURES_PAGE)
    assert RUNTIME.exists() or not claimed


def test_the_comparison_with_the_real_hpa_is_the_committed_run() -> None:
    run = json.loads((ROOT / "benchmarks" / "results" / "scaling.json").read_text())["scrapes_5s"]
    ours, best = (
        next(one for one in run["trials"] if one["name"] == name) for name in ("ours", run["best_hpa"])
    )
    figures, page = (
        " ".join(text.split()) for text in (FIGURES_PAGE, (ROOT / "docs/development.md").read_text())
    )
    for told in (
        f"{100 * ours['ttft_share']:.1f} %",
        f"{ours['replica_seconds']:.0f} replica-seconds",
        f"{100 * best['ttft_share']:.0f} % with {best['replica_seconds']:,.0f}",
        f"{run['replica_seconds_over_best_hpa']:.2f} times as much",
    ):
        assert told in figures, told
        assert told in page, told
    assert run["keeps_objectives"]
    assert run["best_hpa_keeps_objectives"]


def test_what_is_said_of_the_simulators_truth_is_the_committed_run() -> None:
    run = json.loads((ROOT / "benchmarks" / "results" / "simulation.json").read_text())
    page = " ".join((ROOT / "docs" / "development.md").read_text().split())
    errors = {(row["load"], name): [] for row in run["rows"] for name in row["error_percent"]}
    for row in run["rows"]:
        for name, error in row["error_percent"].items():
            errors[row["load"], name].append(abs(error))
    half = max(max(found) for (load, _), found in errors.items() if load == 0.6)
    assert f"its worst error is {run['worst_error_percent']:.1f} %" in page
    assert f"all four errors are within {half:.1f} %" in page
    assert f"come up to {max(errors[0.3, 'output_token']):.1f} % too fast" in page
    assert max(errors[0.85, "output_token"]) < 10 < max(errors[0.85, "first_token"])


def test_what_workers_cost_is_as_measured() -> None:
    figures = json.loads((ROOT / "benchmarks" / "results" / "workers.json").read_text())["figures"]
    text = (ROOT / "docs" / "development.md").read_text()
    for shape, words in (("small", "135 million weights"), ("billion", "one billion weights")):
        ratios = [f"{figures[shape][case]['tp2_over_tp1']:.2f}" for case in ("single", "prefill", "c8")]
        assert f"| {words} | {' | '.join(ratios)} |" in text


@pytest.mark.parametrize(
    ("name", "page", "heading"),
    [
        ("requests", "docs/development.md", "### Grammars and sampling"),
        ("formats", "benchmarks/README.md", "### Quantised checkpoints"),
        ("prefixes", "benchmarks/README.md", "### Prefixes, drafts"),
        ("prefixes-amx", "benchmarks/README.md", "### Long prompts and INT8 KV with AMX"),
    ],
)
def test_the_figures_of_a_part_are_the_committed_run(name: str, page: str, heading: str) -> None:
    run = json.loads((RUNTIME.parent / f"{name}.json").read_text())
    section = (ROOT / page).read_text().partition(heading)[2].partition("\n#")[0]
    told = dict(re.findall(r"^\| `(\w+)` \|[^|]*\| ([\d.]+)(?: \([\d.–]+\))? \|", section, re.MULTILINE))
    assert told == {figure: f"{found['median']:.2f}" for figure, found in run["figures"].items()}
    assert not run["is_quick"]
