"""The comparison of autoscalers: how a knob is chosen, what the figures are made of, and the command."""

import argparse
import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.autoscaler import picture
from benchmarks.autoscaler.__main__ import main, pick_names
from benchmarks.autoscaler.choice import Knob, choose_knob
from benchmarks.autoscaler.jobs import Bench, Job, Result
from benchmarks.autoscaler.report import (
    VARIATIONS,
    Outcome,
    list_reports,
    render,
    render_variations,
    summarise,
)
from millrace_operator.autoscaler.signals.scrapes import DEFAULT_WINDOWS
from millrace_operator.autoscaler.simulate.policies.contestants import (
    CLAIRVOYANT,
    HPA_QUEUE,
    OURS,
    PEERS,
    STATIC,
)
from millrace_operator.autoscaler.simulate.workloads import ramp

pytestmark = [
    pytest.mark.reads("benchmarks", "kernels", "runtime/millrace_runtime"),
    pytest.mark.reads(*(f"operator/millrace_operator/{name}" for name in ("autoscaler", "api", "kube"))),
]
ROOT = Path(__file__).parents[2]
GOOD = Result(1.0, 8.0, 2, 0, 0, 0, 86_400.0)


def results(*pairs: tuple[float, float]) -> list[Result]:
    return [replace_result(attainment=share, average_replicas=count) for share, count in pairs]


def replace_result(**values: float) -> Result:
    return GOOD._replace(**values)  # type: ignore[arg-type]


def test_the_cheapest_knob_that_is_good_everywhere_is_chosen() -> None:
    found = {
        1.0: results((1.0, 9.0), (0.999, 9.0)),
        2.0: results((1.0, 7.0), (0.99, 7.0)),
        3.0: results((1.0, 5.0), (0.98, 5.0)),
    }
    assert choose_knob(found) == Knob(2.0, is_good=True)


def test_without_a_good_knob_the_one_that_comes_nearest_on_its_worst_workload_stands() -> None:
    found = {1.0: results((0.9, 9.0), (0.9, 9.0)), 2.0: results((1.0, 9.0), (0.8, 9.0))}
    assert choose_knob(found) == Knob(1.0, is_good=False)


def fill_outcome(names: tuple[str, ...] = ("W1", "W4")) -> Outcome:
    knobs = {policy: Knob(peer.default, is_good=policy != HPA_QUEUE) for policy, peer in PEERS.items()}
    tuned = {(policy, name): knobs[policy] for policy in PEERS for name in names}
    found = dict.fromkeys(list_reports(names, knobs, tuned), GOOD)
    for job in found:
        if job.policy == OURS:
            found[job] = replace_result(average_replicas=4.0)
        if job.policy == CLAIRVOYANT:
            found[job] = replace_result(average_replicas=3.2)
        if job.policy == STATIC:
            found[job] = replace_result(average_replicas=6.0 if job.workload == "W1" else 8.0)
        if job.policy == HPA_QUEUE:
            found[job] = replace_result(average_replicas=16.0, attainment=0.9)
    return Outcome(names, found, knobs, tuned)


def test_figures_compare_ours_with_the_best_peer_and_the_bound() -> None:
    figures = summarise(fill_outcome())
    assert figures["best_peer"] == STATIC
    assert figures["replica_hours_over_best_peer"] == round(4 / 7, 3)
    assert figures["replica_hours_over_hpa_queue"] == 0.25
    assert figures["hpa_queue_reaches_the_bar"] is False
    assert figures["replica_hours_over_clairvoyant"] == 1.25
    assert figures["worst_over_tuned_peer"] == round(4 / 6, 3)
    assert figures["w1_average_replicas"] == 4.0
    assert figures["reversals_per_day"] == 2.0
    assert figures["attainment_w5"] is None


def test_figures_of_endurance_take_the_worst_workload() -> None:
    outcome = fill_outcome()
    found = dict(outcome.results)
    ours = Job("W4", OURS)
    found[replace(ours, cold_start=300.0)] = replace_result(attainment=0.97)
    found[replace(ours, scrape=30.0)] = replace_result(attainment=0.98)
    found[replace(ours, fault="outage")] = replace_result(num_downs_at_peak=3)
    found[replace(ours, fault="loss")] = replace_result(num_unanswered=2)
    figures = summarise(replace(outcome, results=found))
    assert figures["attainment_lost_cold_start"] == 0.03
    assert figures["attainment_lost_scrape"] == 0.02
    assert figures["scale_downs_in_faults"] == 3
    assert figures["killed_requests"] == 2


def test_the_table_says_who_never_reaches_the_bar() -> None:
    rows = {line.split()[0]: line for line in render(fill_outcome())[1:-1]}
    assert set(rows) == {OURS, CLAIRVOYANT, *PEERS}
    assert "never, target 5" in rows[HPA_QUEUE]
    assert "never" not in rows[STATIC]


def test_variations_show_what_each_of_them_costs_on_the_worst_workload() -> None:
    outcome = fill_outcome()
    found = dict(outcome.results)
    found[Job("W4", OURS, cold_start=300.0)] = replace_result(attainment=0.9, average_replicas=6.0)
    lines = render_variations(replace(outcome, results=found))
    ours, brief = (line for line in lines if line.startswith(OURS))
    assert ours.startswith(f"{OURS}, all")
    assert ours.count("90.00%  5.00") == 1
    assert ours.count("100.00%  4.00") == len(VARIATIONS) - 1
    assert brief.count("100.00%  4.00") == len(VARIATIONS)


def test_peers_are_not_varied_on_whole_days() -> None:
    jobs = fill_outcome().results
    varied = {(job.policy == OURS, job.workload) for job in jobs if job.fault}
    assert varied == {(True, "W1"), (True, "W4"), (False, "W1")}


def test_knobs_are_chosen_by_half_a_day_and_compared_on_a_whole_one() -> None:
    bench = Bench(None, is_short=False)
    assert bench.find_workload("W4", "tune").seconds == bench.find_workload("W4", "report").seconds / 2


@pytest.mark.parametrize("policy", PEERS)
def test_every_peer_tries_values_and_takes_each(policy: str) -> None:
    peer, workload = PEERS[policy], ramp()
    assert len(set(peer.values)) == len(peer.values) >= 4
    for value in peer.values:
        assert peer.build(workload, value, DEFAULT_WINDOWS).tick_seconds > 0


def test_a_peer_that_watches_another_percentile_gets_it() -> None:
    objectives = ramp().objectives
    assert {each.percentile for each in PEERS["llm-d"].watch(objectives)} == {90}
    assert PEERS[STATIC].watch(objectives) == objectives


@pytest.mark.parametrize(
    ("only", "said"),
    [
        ("W1,W9", "--only W9: write some of W1 to W6"),
        ("W2", "W2 needs Azure's trace: write --data FOLDER with AzureLLMInferenceTrace_conv.csv in it"),
        ("W6", "--only W6: add one of W1, W2, W4, W5"),
    ],
)
def test_workloads_that_can_not_be_run_are_refused(
    only: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["--only", only])
    assert said in capsys.readouterr().err


def test_a_folder_without_the_trace_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--only", "W1,W2", "--data", str(tmp_path)])
    assert "there is no AzureLLMInferenceTrace_conv.csv in it" in capsys.readouterr().err


def test_without_traces_their_workloads_are_left_out_and_named(capsys: pytest.CaptureFixture[str]) -> None:
    names = pick_names(argparse.ArgumentParser(), None, None)
    assert names == ["W1", "W4", "W5", "W6"]
    assert "W2 is left out: it needs --data FOLDER" in capsys.readouterr().err


def test_no_jobs_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--jobs", "0"])
    assert "--jobs 0: write 1 or more" in capsys.readouterr().err


def test_a_job_gives_the_same_result_again() -> None:
    bench, job = Bench(None, is_short=True), Job("W1", "knative", 36.0)
    assert bench.run(job) == bench.run(job)
    assert bench.run(replace(job, part="tune")) != bench.run(job)


def test_the_bound_is_below_the_static_count_that_does() -> None:
    bench = Bench(None, is_short=True)
    bound, fixed = bench.run(Job("W1", CLAIRVOYANT)), bench.run(Job("W1", STATIC, 4.0))
    assert bound.attainment >= 0.99
    assert bound.average_replicas <= fixed.average_replicas


@pytest.mark.long
@pytest.mark.slow
def test_a_short_run_prints_a_table_and_one_json_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "autoscaler.json"
    assert main(["--short", "--only", "W1,W6", "--output", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    result = json.loads(lines[-1])
    assert result == json.loads(path.read_text())
    assert {"date", "commit", "machine", "attainment_w1", "replica_hours_over_clairvoyant"} <= set(result)
    assert result["peers"].keys() == PEERS.keys()
    assert any(line.startswith("millrace ") for line in lines)
    assert len(result["sweeps"]) == 2 * len(PEERS)
    assert {run["policy"] for run in result["runs"] if run["workload"] == "W6"} == {OURS, STATIC}
    assert result["attainment_w6"] > 0


def test_the_picture_has_every_rule_that_ran_and_says_of_which_run_it_is(tmp_path: Path) -> None:
    result, path = ROOT / "benchmarks" / "results" / "autoscaler.json", tmp_path / "autoscaler.png"
    run = json.loads(result.read_text())
    assert {point.policy for point in picture.list_points(run, "W1")} == {OURS, CLAIRVOYANT, *PEERS}
    assert any(not point.is_for_all for point in picture.list_points(run, "W1"))
    assert picture.main([str(result), str(path)]) == 0
    assert picture.name_run(run).encode() in path.read_bytes()


def test_the_committed_comparison_is_of_an_autoscaler_like_the_present_one() -> None:
    """The ramp alone, which takes seconds. If it fails, `make bench-autoscaler` is to be run anew."""
    run = json.loads((ROOT / "benchmarks" / "results" / "autoscaler.json").read_text())
    usual = {"policy": OURS, "workload": "W1", "cold_start": None, "scrape": 5.0, "fault": ""}
    committed = next(one for one in run["runs"] if usual.items() <= one.items())
    present = Bench(None, is_short=False).run(Job("W1", OURS))
    assert present.attainment == pytest.approx(committed["attainment"], abs=0.002)
    assert present.average_replicas == pytest.approx(committed["average_replicas"], rel=0.05)
