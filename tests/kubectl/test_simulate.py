"""`simulate`: a user's own traffic, the answers, and the errors that say what to write instead."""

import importlib.util
import json
import random
import re
import struct
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from millrace_fit.settings import MAX_BATCHED_TOKENS, MAX_SEQUENCES
from millrace_kubectl.simulation import policies
from millrace_kubectl.simulation.replica import DEFAULTS, NEEDED, RUNTIMES, read_fit
from millrace_kubectl.simulation.session import Progress
from millrace_operator.autoscaler.capacity.latency_model import LatencyModel
from millrace_operator.autoscaler.decide.memory import Memory
from millrace_operator.autoscaler.decide.prior import PRIOR, render_prior
from millrace_operator.autoscaler.signals.observation import StepMoments
from millrace_operator.autoscaler.simulate.hardware import Hardware
from tests.kubectl.conftest import Terminal, make_service
from tests.kubectl.simulation import Desk, make_manifest

GOLDEN = Path(__file__).with_name("golden") / "simulation.txt"
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "simulate.md"


@pytest.fixture
def desk(terminal: Terminal, tmp_path: Path) -> Desk:
    return Desk(terminal, tmp_path)


def test_the_table_is_that_of_the_golden_file_and_the_cluster_is_not_asked(desk: Desk) -> None:
    manifest = make_manifest()
    manifest["spec"]["cost"] = {"acceleratorHour": "2.50", "currency": "EUR"}
    manifest["spec"]["engine"] = {"version": "0.2.0"}  # it chooses an image, and so changes no figure
    desk.write("service.yaml", manifest)
    answer = desk.simulate("--policy", "hpa:12,keda:12,static:1,static")
    assert (answer.status, answer.error) == (0, "")
    assert answer.out == GOLDEN.read_text()
    assert not desk.terminal.calls


def test_json_says_the_same_with_the_course_over_time(desk: Desk) -> None:
    found = json.loads(desk.simulate("--policy", "static:1,static:6", "-o", "json").out)
    one, six = found["policies"]
    assert (one["policy"], one["knob"], one["averageReplicas"]) == ("static", 1, 1)
    assert (one["cost"], found["currency"]) == (None, None)
    assert one["attainment"] < 0.9
    assert six["attainment"] > 0.99
    assert one["missedMinutes"] > six["missedMinutes"] == 0
    assert six["busyMinutes"] == 6
    assert six["course"]["replicas"][0] == [0, 6]
    assert six["course"]["replicas"][-1] == [found["load"]["seconds"], 6]
    assert max(value for _, value in six["course"]["latencies"][0]) < 1
    assert six["course"]["replicaHours"][-1][1] == pytest.approx(
        6 * found["load"]["seconds"] / 3600, rel=1e-3
    )


def test_our_autoscaler_keeps_the_objectives_with_fewer_replicas_than_the_most(desk: Desk) -> None:
    (ours,) = json.loads(desk.simulate("--policy", "ours", "-o", "json").out)["policies"]
    assert ours["attainment"] > 0.95
    assert 1 < ours["averageReplicas"] < 5


def test_equal_seeds_give_equal_answers_and_other_seeds_others(desk: Desk) -> None:
    desk.shorten()
    first, again, other = (
        desk.simulate("--policy", "ours", "--seed", seed, "-o", "json").out for seed in ("1", "1", "2")
    )
    assert first == again != other


def test_part_scale_scrape_and_initial_do_what_they_say(desk: Desk) -> None:
    words = ("--policy", "hpa:2", "-o", "json", "--initial", "3", "--scrape", "30s")
    found = json.loads(desk.simulate(*words, "--part", "2m-4m", "--scale", "3").out)
    whole = json.loads(desk.simulate(*words, "--part", "2m-4m").out)
    assert found["load"]["seconds"] == whole["load"]["seconds"] == 120
    assert found["load"]["requests"] == pytest.approx(3 * whole["load"]["requests"], rel=0.05)
    assert found["policies"][0]["course"]["replicas"][0] == [0, 3]
    often = json.loads(desk.simulate(*words, "--part", "2m-4m", "--scrape", "5s").out)
    assert (whole["scrapeSeconds"], often["scrapeSeconds"]) == (30, 5)
    assert whole["policies"] != often["policies"]
    assert "3 times" in found["notes"][0]


@pytest.mark.parametrize(
    ("cost", "limits", "each", "currency"),
    [
        ({"resourceHours": {"cpu": "0.05", "memory": "0.01"}}, {"cpu": "4", "memory": "8Gi"}, 0.28, "USD"),
        (
            {"acceleratorHour": "2.50", "resourceHours": {"cpu": "0.05"}, "currency": "EUR"},
            {"cpu": "8", "nvidia.com/gpu": "2"},
            5.4,
            "EUR",
        ),
        (
            {"acceleratorHour": "2.50", "resourceHours": {"nvidia.com/gpu": "3.00"}},
            {"nvidia.com/gpu": 2},
            6.0,
            "USD",
        ),
        ({"resourceHours": {"cpu": "0.05"}}, {"memory": "8Gi"}, None, None),
        ({"acceleratorHour": "2.50"}, {"cpu": "4"}, None, None),
    ],
    ids=["hours", "both", "named", "other", "no-accelerator"],
)
def test_a_replica_costs_what_the_operator_says(
    desk: Desk, cost: dict[str, Any], limits: dict[str, Any], each: float | None, currency: str | None
) -> None:
    manifest = make_manifest()
    manifest["spec"] |= {"cost": cost, "resources": {"limits": limits}}
    desk.write("service.yaml", manifest)
    found = json.loads(desk.simulate("--policy", "static:2", "-o", "json").out)
    (row,) = found["policies"]
    assert found["currency"] == currency
    assert row["cost"] == (None if each is None else pytest.approx(row["replicaHours"] * each, rel=1e-3))


def test_a_running_service_lends_its_cost_which_knows_the_prices_of_the_cluster(desk: Desk) -> None:
    service = fitted_service(desk)
    service["status"]["cost"] = {"currency": "CHF", "replicaPerHour": "1.75"}
    desk.terminal.put(service)
    words = ("--like", "chat", "--policy", "static:3", "-o", "json")
    found = json.loads(desk.simulate(*words, without=("-f", "--replica")).out)
    assert found["currency"] == "CHF"
    assert found["policies"][0]["cost"] == pytest.approx(
        found["policies"][0]["replicaHours"] * 1.75, rel=1e-3
    )
    own = make_manifest()
    own["spec"]["cost"] = {"acceleratorHour": "2.50", "currency": "EUR"}
    desk.write("service.yaml", own)
    assert json.loads(desk.simulate(*words, without=("--replica",)).out)["currency"] == "EUR"


@pytest.mark.slow
def test_a_sweep_has_every_value_of_each_knob_and_runs_none_twice(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.shorten()
    begun: list[str] = []
    monkeypatch.setattr(Progress, "begin", lambda _, label: begun.append(label))
    found = json.loads(desk.simulate("--policy", "ours,hpa,static:2", "--sweep", "-o", "json").out)["sweep"]
    knobs = {name: [e["knob"] for e in found if e["policy"] == name] for name in ("static", "hpa-in-flight")}
    assert sorted(knobs["static"]) == [1, 2, 3, 4, 5, 6]
    assert sorted(knobs["hpa-in-flight"]) == [8, 12, 16, 24, 32, 64]
    assert [each["policy"] for each in found].count("millrace") == 1
    assert len(begun) == len(set(begun)) == len(found)


@pytest.mark.slow
def test_the_folder_has_a_picture_and_one_page_that_loads_nothing(desk: Desk, tmp_path: Path) -> None:
    desk.shorten()
    folder = tmp_path / "a" / "folder"
    answer = desk.simulate("--policy", "ours,static:2", "--sweep", "--output", str(folder))
    assert answer.status == 0, answer.error
    assert f"written: {folder / 'simulation.html'}" in answer.out
    assert {path.name for path in folder.iterdir()} == {"simulation.png", "sweep.png", "simulation.html"}
    for name in ("simulation.png", "sweep.png"):
        content = (folder / name).read_bytes()
        assert content.startswith(b"\x89PNG")
        width, height = struct.unpack(">II", content[16:24])
        assert min(width, height) > 600
    page = (folder / "simulation.html").read_text()
    assert not re.search(r"https?:|@import|url\((?!#)|<script|<link|\bsrc=", page)
    assert not re.search(r'href="(?!#)', page)
    assert page.count("<svg") == page.count("</svg>") == 2
    assert page.count("<table") == page.count('<div class="wide"><table') == 2
    assert ".wide { overflow-x: auto; }" in page
    assert "Simulation of chat" in page
    assert "static" in page


def test_without_matplotlib_the_table_works_and_pictures_are_refused_before_anything_is_simulated(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.shorten()
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "matplotlib" else find(name, *rest)
    )
    answer = desk.simulate("--output", str(tmp_path / "out"))
    assert (answer.status, answer.out) == (2, "")
    assert "pip install 'millrace[simulate]'" in answer.error
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert desk.simulate("--policy", "static:2").status == 0


def test_without_pyyaml_a_manifest_in_json_works(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.shorten()
    monkeypatch.setitem(sys.modules, "yaml", None)
    answer = desk.simulate("--policy", "static:2")
    assert answer.status == 2
    assert "pip install 'millrace[simulate]', or write it as JSON" in answer.error
    manifest = desk.folder / "service.json"
    manifest.write_text(json.dumps(make_manifest()))
    assert desk.simulate("-f", str(manifest), "--policy", "static:2", without=("-f",)).status == 0


def learn(num_steps: int = 60, **known: Any) -> dict[str, Any]:
    """The prior that an operator has written on a service's revision, of steps with these α, β and γ."""
    draw, model = random.Random(1), LatencyModel()
    for _ in range(num_steps):
        batch, context = draw.uniform(1, 16), draw.uniform(100, 2000)
        seconds = 0.012 + 0.00021 * batch + 3e-8 * batch * context
        model = model.learn(StepMoments("chat-1", seconds, batch, batch, batch * context, 50))
    memory = Memory(model=model, revision="r1", **known)
    return {"at": "2026-01-01T00:00:00Z", PRIOR: json.dumps(render_prior(memory, "cpu=8"))}


def fitted_service(desk: Desk) -> dict[str, Any]:
    """A service of which an operator has written a model down."""
    desk.terminal.put_record(json.dumps(learn()))
    return make_service(objectives=make_manifest()["spec"]["scaling"]["objectives"])


def test_a_running_service_lends_its_fit_and_its_manifest(desk: Desk) -> None:
    desk.shorten()
    desk.terminal.put(fitted_service(desk))
    words = ("--like", "chat", "--policy", "static:3", "-o", "json")
    found = json.loads(desk.simulate(*words, without=("-f", "--replica")).out)
    replica = Hardware(**found["replica"])
    assert replica.step_seconds(10, 2000) == pytest.approx(0.012 + 10 * 0.00021 + 2000 * 3e-8, rel=0.01)
    assert (found["minReplicas"], found["maxReplicas"]) == (2, 8)
    assert "assumed" in found["notes"][0]
    assert [call[0] for call in desk.terminal.calls] == ["get", "get"]


@pytest.mark.parametrize(
    ("limits", "sizes"), [({"cpu": 8}, (32, 512)), ({"cpu": 8, "nvidia.com/gpu": 1}, (256, 4096))]
)
def test_a_running_service_has_the_batch_of_the_runtime_on_its_hardware(
    desk: Desk, limits: dict[str, Any], sizes: tuple[int, int]
) -> None:
    desk.shorten()
    service = fitted_service(desk)
    service["spec"]["resources"] = {"limits": limits}
    desk.terminal.put(service)
    words = ("--like", "chat", "--policy", "static:3", "-o", "json")
    found = json.loads(desk.simulate(*words, without=("-f", "--replica")).out)
    assert (found["replica"]["max_sequences"], found["replica"]["max_batched_tokens"]) == sizes
    assert f"max_sequences {sizes[0]}, max_batched_tokens {sizes[1]}" in found["notes"][0]


def test_whatever_of_a_replica_is_assumed_is_named(desk: Desk) -> None:
    desk.shorten()
    service = fitted_service(desk)
    service["spec"]["engine"] = {"maxSequences": 4, "maxBatchedTokens": 64}
    desk.terminal.put(service)
    desk.write("replica.json", {"kv_tokens": 30_000, "noise": 0})
    words = ("--like", "chat", "--policy", "static:3", "-o", "json")
    (note,) = json.loads(desk.simulate(*words, without=("-f",)).out)["notes"]
    assert note.startswith("assumed of a replica: unevenness 0.02, stalls_per_hour 6, ")
    for known in ("max_sequences", "kv_tokens", "noise", "token_seconds", "cold_start_seconds"):
        assert known not in note


def test_what_is_assumed_of_the_operator_is_named_where_ours_is_simulated(desk: Desk) -> None:
    desk.shorten()
    notes = json.loads(desk.simulate("--policy", "millrace,static:3", "-o", "json").out)["notes"]
    assumed = "it decides every 2s, its scale-down window is 180s, and nodes have room for all"
    assert f"assumed of the operator: {assumed}" in notes


def test_the_batch_that_is_assumed_here_is_that_of_the_runtime() -> None:
    assert {name: RUNTIMES[name] for name in ("cpu", "cuda")} == {
        name: (MAX_SEQUENCES[name], MAX_BATCHED_TOKENS[name]) for name in ("cpu", "cuda")
    }


def test_the_file_of_a_replica_wins_over_the_fit(desk: Desk) -> None:
    desk.shorten()
    desk.terminal.put(fitted_service(desk))
    desk.write("replica.json", {"kv_tokens": 30_000})
    found = json.loads(desk.simulate("--like", "chat", "--policy", "static:3", "-o", "json").out)
    assert found["replica"]["kv_tokens"] == 30_000
    assert found["replica"]["token_seconds"] == pytest.approx(0.00021, rel=0.05)
    assert found["replica"]["cold_start_seconds"] == 30


def test_a_cold_start_and_the_kv_cache_are_what_the_operator_has_seen(desk: Desk) -> None:
    learned = learn(cold_starts=(93.5, 20.0), kv_tokens=30_000.0)
    desk.shorten()
    desk.terminal.put(fitted_service(desk))
    desk.terminal.put_record(json.dumps(learned))
    words, unnamed = (
        ("--like", "chat", "--policy", "static:3", "-o", "json"),
        ("-f", "--replica", "--cold-start"),
    )
    replica = json.loads(desk.simulate(*words, without=unnamed).out)["replica"]
    assert (replica["cold_start_seconds"], replica["kv_tokens"]) == (93.5, 30_000)
    fields = read_fit("chat", learned)
    assert (fields["cold_start_seconds"], fields["kv_tokens"]) == (93.5, 30_000)
    assert not {"cold_start_seconds", "kv_tokens"} & read_fit("chat", learn()).keys()


@pytest.mark.parametrize(
    ("record", "says"),
    [
        (learn(num_steps=3), "does not fit yet"),
        ({"at": "2026-01-01T00:00:00Z"}, "no latency model"),
        ({"at": "2026-01-01T00:00:00Z", PRIOR: "{"}, "can't be used: it is no JSON"),
        ("", "no latency model"),
        (None, "is forbidden"),
    ],
)
def test_a_service_without_a_fit_lends_nothing(desk: Desk, record: Any, says: str) -> None:
    desk.terminal.put_record(json.dumps(record) if record else record)
    answer = desk.simulate("--like", "chat", without=("--replica",))
    assert answer.status == 1
    assert says in answer.error
    assert record is None or "--replica FILE" in answer.error


def test_the_manifest_sizes_the_batch_as_on_a_cluster(desk: Desk) -> None:
    desk.shorten()
    manifest = make_manifest()
    manifest["spec"]["engine"] = {"maxSequences": 4, "maxBatchedTokens": 512}
    desk.write("service.yaml", manifest)
    found = json.loads(desk.simulate("--policy", "static:3", "-o", "json").out)["replica"]
    assert (found["max_sequences"], found["max_batched_tokens"]) == (4, 512)


def test_an_objective_that_no_count_meets_does_not_make_all_begin_at_the_minimum(desk: Desk) -> None:
    objectives = make_manifest()["spec"]["scaling"]["objectives"]
    words = ("--policy", "static:3", "--part", "2m-4m", "-o", "json")
    met = json.loads(desk.simulate(*words).out)["initialReplicas"]
    hopeless = {"metric": "TimePerOutputToken", "percentile": 95, "target": "1ms"}
    desk.write("service.yaml", make_manifest(objectives=[*objectives, hopeless]))
    assert json.loads(desk.simulate(*words).out)["initialReplicas"] == met > 1


def test_answers_of_one_token_have_no_time_per_output_token(desk: Desk) -> None:
    """Four of five answers have one token: the others' latency is still the percentile's."""
    lines = [f"{number / 2:.1f},200,{80 if number % 5 == 0 else 1}" for number in range(240)]
    desk.trace.write_text("\n".join(["seconds,prompt_tokens,generation_tokens", *lines]))
    objective = {"metric": "TimePerOutputToken", "percentile": 50, "target": "50ms"}
    desk.write("service.yaml", make_manifest(objectives=[objective]))
    (row,) = json.loads(desk.simulate("--policy", "static:3", "-o", "json").out)["policies"]
    assert min(value for _, value in row["course"]["latencies"][0]) > 0.01


@pytest.mark.parametrize(("metric", "target"), [("EndToEndLatency", "5s"), ("QueueTime", "150ms")])
def test_whole_requests_and_queues_are_compared_as_other_latencies(
    desk: Desk, metric: str, target: str
) -> None:
    objective = {"metric": metric, "percentile": 95, "target": target}
    desk.write("service.yaml", make_manifest(objectives=[objective]))
    rows = json.loads(desk.simulate("--policy", "static:1,static:6,ours", "-o", "json").out)["policies"]
    few, many, ours = (row["attainment"] for row in rows)
    assert few < 0.8 < many
    assert few < ours
    assert max(value for _, value in rows[1]["course"]["latencies"][0]) < 10.0


def test_another_mode_is_noted(desk: Desk) -> None:
    desk.shorten()
    desk.write("service.yaml", make_manifest(mode="External"))
    assert (
        "mode is External: simulated is what Automatic would do" in desk.simulate("--policy", "static:2").out
    )


def test_a_policy_may_be_named_as_the_table_and_its_own_project_name_it() -> None:
    named = policies.read_choices("kpa,hpa-in-flight,llm-d:0.5,wva-saturation,millrace", 1, 8)
    assert named == policies.read_choices("knative,hpa,llmd:0.5,wva,ours", 1, 8)


def test_the_page_names_every_policy_and_every_field_of_a_replica() -> None:
    cells = re.findall(r"^\| ((?:`[^`]+`(?:, )?)+) \|", PAGE.read_text(), re.MULTILINE)
    named = {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}
    needed = set(re.findall(r"^(\w+): [\d.e-]+ +#", PAGE.read_text(), re.MULTILINE))
    assert needed == set(NEEDED)
    assert named | needed >= {*policies.NAMES, *DEFAULTS}


class Screen:
    """A terminal that keeps the written text."""

    def __init__(self, *, is_terminal: bool) -> None:
        self.text, self._is_terminal = "", is_terminal

    def isatty(self) -> bool:
        return self._is_terminal

    def write(self, text: str) -> None:
        self.text += text

    def flush(self) -> None:
        pass


@pytest.mark.parametrize("is_terminal", [True, False])
def test_the_bar_is_for_terminals_and_is_gone_at_the_end(*, is_terminal: bool) -> None:
    screen = Screen(is_terminal=is_terminal)
    progress = Progress(screen, total=2, seconds=10.0)  # type: ignore[arg-type]
    for label in ("ours", "hpa"):
        progress.begin(label)
        for at in (5.0, 9.0, 12.0):
            progress.follow(at)
        progress.end()
    shown = re.findall(r"(\d+) %  (\d/\d \w+)", screen.text)
    wanted = [("0", "1/2 ours"), ("25", "1/2 ours"), ("45", "1/2 ours"), ("50", "1/2 ours")]
    wanted += [("50", "2/2 hpa"), ("75", "2/2 hpa"), ("95", "2/2 hpa"), ("100", "2/2 hpa")]
    assert shown == (wanted if is_terminal else [])
    assert screen.text.endswith("\x1b[K") is is_terminal


@pytest.mark.parametrize("policy", ["ours", "hpa", "keda", "wva", "llmd", "static"])
def test_the_bar_follows_the_time_where_nothing_comes(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    shown: list[float] = []
    monkeypatch.setattr(Progress, "follow", lambda _, at: shown.append(at))
    desk.trace.write_text("seconds,prompt_tokens,generation_tokens\n0,100,50\n1200,100,50\n")
    assert desk.simulate("--policy", policy).status == 0
    assert shown == sorted(shown)
    assert shown[0] <= 60
    assert all(after - before <= 60 for before, after in pairwise([*shown, 1200.0]))
