"""`simulate`: bad input, and the errors that say what to write instead."""

import json
from pathlib import Path
from typing import Any

import pytest

from millrace_kubectl.simulation import report
from millrace_kubectl.simulation.manifest import PERCENTILES
from millrace_kubectl.simulation.replica import NEEDED
from millrace_kubectl.simulation.session import Session
from millrace_operator.api import crd
from tests.kubectl.conftest import Terminal
from tests.kubectl.simulation import REPLICA, Desk, make_manifest


@pytest.fixture
def desk(terminal: Terminal, tmp_path: Path) -> Desk:
    return Desk(terminal, tmp_path)


@pytest.mark.parametrize(
    ("words", "without", "says"),
    [
        ((), ("-f",), "write -f FILE with its manifest, or --like NAME"),
        ((), ("--replica",), "write --replica FILE with its step times, or --like NAME"),
        ((), ("--trace",), "one of the arguments --trace --from-prometheus is required"),
        (("--since", "2h"), (), "of a trace write --part BEGIN-END"),
        (("--from-prometheus", "http://127.0.0.1:1", "--scale", "2"), ("--trace",), "--scale is of --trace"),
        (
            ("--from-prometheus", "localhost:9090"),
            ("--trace",),
            "write an address such as http://127.0.0.1:9090",
        ),
        (("--from-prometheus", "http://["), ("--trace",), "http://[: write an address such as http://127"),
        (
            ("--from-prometheus", "http://h:abc"),
            ("--trace",),
            "write an address such as http://127.0.0.1:9090",
        ),
        (
            ("--from-prometheus", "http://a b/"),
            ("--trace",),
            "write an address such as http://127.0.0.1:9090",
        ),
        (("--policy", "hps"), (), "'hps' is unknown; write some of ours,hpa,"),
        (("--policy", "ours:2"), (), "ours has no knob"),
        (("--policy", "hpa:many"), (), "write a number of more than 0, such as hpa:64"),
        (("--policy", "static:7"), (), "the manifest allows 1 to 6 replicas"),
        (("--policy", "static:1.5"), (), "write a whole number of more than 0, such as static:6"),
        (("--part", "5m"), (), "write two times, such as 0s-30m"),
        (("--part", "1h-2h"), (), "within 6m"),
        (("--scale", "0"), (), "no whole number from 1 to 9999"),
        (("--initial", "9"), (), "the manifest allows 1 to 6"),
        (("--cold-start", "2 minutes"), (), "is no duration; write for example 500ms, 2s, 10m"),
        (("--seed", "-1"), (), "no whole number from 0"),
        (("-o", "yaml"), (), "invalid choice: 'yaml'"),
    ],
)
def test_flags_that_cannot_be_are_refused_with_what_to_write(
    desk: Desk, words: tuple[str, ...], without: tuple[str, ...], says: str
) -> None:
    answer = desk.simulate(*words, without=without)
    assert (answer.status, answer.out) == (2, "")
    assert says in answer.error


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("speed", 1, "speed is no field of a replica; write some of overhead_seconds,"),
        ("token_seconds", "fast", "token_seconds is 'fast'; write a number from 0, such as 0.00025"),
        ("token_seconds", -1, "write a number from 0"),
        ("kv_tokens", 0, "kv_tokens is 0; write a whole number from 1, such as 300000"),
        ("max_sequences", 2.5, "write a whole number from 1"),
        ("warm_up_factor", 0.5, "write 1 (no warm-up) or more"),
        ("kv_tokens", None, "kv_tokens is None"),
        ("kv_tokens", 500, "requests are longer than a replica's KV cache of 500 tokens; write kv_tokens of"),
    ],
)
def test_a_wrong_field_of_a_replica_is_named(desk: Desk, field: str, value: Any, says: str) -> None:
    desk.write("replica.json", {**REPLICA, field: value})
    answer = desk.simulate("--policy", "static:2")
    assert (answer.status, answer.out) == (2, "")
    assert says in answer.error


def test_a_replica_that_lacks_what_decides_is_refused(desk: Desk) -> None:
    desk.write("replica.json", {"token_seconds": 0.001})
    error = desk.simulate().error
    assert "lacks overhead_seconds, weights_seconds, context_seconds, kv_tokens; docs/how-to" in error
    page = crd.REPOSITORY / next(word for word in error.split() if word.startswith("docs/"))
    assert all(name in page.read_text() for name in NEEDED)


def test_numbers_that_yaml_takes_for_texts_are_read(desk: Desk) -> None:
    desk.shorten()
    path = desk.folder / "replica.yaml"
    path.write_text("\n".join(f"{name}: {value}" for name, value in REPLICA.items()))
    assert "2e-08" in path.read_text()
    found = json.loads(
        desk.simulate(
            "--replica", str(path), "--policy", "static:2", "-o", "json", without=("--replica",)
        ).out
    )
    assert found["replica"]["context_seconds"] == 2e-8


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"objectives": []}, "objectives has none, and a simulation compares by them; write {metric:"),
        (
            {"objectives": [{"metric": "Latency"}]},
            "objectives[0].metric is 'Latency'; write one of TimeToFirst",
        ),
        ({"objectives": [{"metric": "TimeToFirstToken"}]}, "write for example {metric: TimeToFirstToken"),
        *(
            (
                {"objectives": [{"metric": "TimeToFirstToken", "percentile": percentile, "target": "1s"}]},
                f"objectives[0].percentile is {percentile!r}; write a whole number from 50 to 99",
            )
            for percentile in (99.5, "p95", "95", True, 0, 49, 100)
        ),
        ({"minReplicas": 7}, "maxReplicas is 6; write 7 (minReplicas) or more"),
        ({"maxReplicas": "six"}, "spec.scaling.maxReplicas is 'six'; write a whole number from 1"),
        ({"mode": "Manual"}, "spec.scaling.mode is 'Manual'; write one of Automatic, DryRun, External"),
    ],
)
def test_a_wrong_field_of_the_manifest_is_named(desk: Desk, change: dict[str, Any], says: str) -> None:
    desk.write("service.yaml", make_manifest(**change))
    answer = desk.simulate()
    assert (answer.status, answer.out) == (2, "")
    assert says in answer.error


def test_the_percentiles_are_those_that_the_api_server_takes() -> None:
    scaling = crd.render_crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    objective = scaling["properties"]["scaling"]["properties"]["objectives"]["items"]["properties"]
    assert range(objective["percentile"]["minimum"], objective["percentile"]["maximum"] + 1) == PERCENTILES


@pytest.mark.parametrize(
    ("cost", "says"),
    [
        ({"acceleratorHour": "free"}, "spec.cost: 'free' is no price of an hour; write decimal text such as"),
        ({"resourceHours": {"cpu": "-1"}}, "spec.cost: '-1' is no price of an hour"),
        ({"resourceHours": "cheap"}, "spec.cost.resourceHours is 'cheap'; write fields with values"),
        ({"acceleratorHour": "2.50", "currency": "euro"}, "spec.cost: 'euro' is no currency"),
    ],
)
def test_a_wrong_price_is_named(desk: Desk, cost: dict[str, Any], says: str) -> None:
    manifest = make_manifest()
    manifest["spec"]["cost"] = cost
    desk.write("service.yaml", manifest)
    answer = desk.simulate()
    assert (answer.status, answer.out) == (2, "")
    assert says in answer.error


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("time,tokens\n", 'write "seconds,prompt_tokens,generation_tokens" there'),
        ("seconds,prompt_tokens,generation_tokens\n", "has no requests"),
        ("seconds,prompt_tokens,generation_tokens\n1,2\n", "line 2"),
    ],
)
def test_a_wrong_trace_is_refused(desk: Desk, text: str, says: str) -> None:
    desk.trace.write_text(text)
    answer = desk.simulate()
    assert answer.status == 2
    assert says in answer.error


def test_a_file_that_is_not_there_is_named(desk: Desk) -> None:
    answer = desk.simulate("-f", "absent.yaml", without=("-f",))
    assert answer.status == 2
    assert "absent.yaml: No such file" in answer.error


@pytest.fixture
def nothing_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("it was simulated before the folder was tried")

    monkeypatch.setattr(Session, "run", refuse)


@pytest.mark.usefixtures("nothing_simulated")
@pytest.mark.parametrize("folder", ["/sys", "/dev/null", "/dev/null/report"])
def test_a_folder_that_cannot_be_written_is_refused_before_anything_is_simulated(
    desk: Desk, folder: str
) -> None:
    answer = desk.simulate("--output", folder)
    assert (answer.status, answer.out) == (2, "")
    assert f"--output {folder}" in answer.error
    assert "write another folder" in answer.error


@pytest.mark.usefixtures("nothing_simulated")
@pytest.mark.parametrize("name", ["simulation.png", "simulation.html", "sweep.png"])
def test_a_folder_in_the_place_of_a_file_is_refused_before_anything_is_simulated(
    desk: Desk, tmp_path: Path, name: str
) -> None:
    (tmp_path / "report" / name).mkdir(parents=True)
    answer = desk.simulate("--sweep", "--output", str(tmp_path / "report"))
    assert (answer.status, answer.out) == (2, "")
    assert f"{tmp_path / 'report' / name}: Is a directory" in answer.error


def test_trying_a_folder_leaves_nothing_and_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "simulation.html").write_text("an older one")
    report.prepare(tmp_path, with_sweep=True)
    assert [path.name for path in tmp_path.iterdir()] == ["simulation.html"]
    assert (tmp_path / "simulation.html").read_text() == "an older one"


@pytest.mark.parametrize("format_", ["text", "json"])
def test_the_table_is_printed_where_the_folder_fails_later(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format_: str
) -> None:
    desk.shorten()
    words = ("--policy", "static:2", "-o", format_)
    table = desk.simulate(*words).out
    write = Path.write_bytes

    def fill(path: Path, content: bytes) -> int:
        if path.name == "simulation.html":
            raise OSError(28, "No space left on device")
        return write(path, content)

    monkeypatch.setattr(Path, "write_bytes", fill)
    answer = desk.simulate(*words, "--output", str(tmp_path / "report"))
    assert answer.status == 1
    assert answer.out == table
    assert "No space left on device; write another folder" in answer.error
