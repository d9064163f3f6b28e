"""Several nodes: a replica refuses a group of workers that is larger than its pod."""

from pathlib import Path

import pytest

from millrace_runtime import contract
from millrace_runtime.replica.command import check_group, main
from millrace_runtime.replica.errors import SettingError

GROUP = {"WORLD_SIZE": "16", "RANK": "8", "MASTER_ADDR": "group-0.group", "MASTER_PORT": "29500"}


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"WORLD_SIZE": ""},
        {"WORLD_SIZE": "1", "RANK": "0"},
        {"WORLD_SIZE": "8"},
        GROUP,
        {"MASTER_PORT": "tcp://10.96.0.7:80", "RANK": "first"},  # as Kubernetes does for a Service "master"
    ],
)
def test_a_group_of_no_more_workers_than_the_pods_own_is_accepted(environment: dict[str, str]) -> None:
    check_group(environment, 16)


def test_workers_elsewhere_are_refused_in_one_line() -> None:
    with pytest.raises(SettingError) as refusal:
        check_group(GROUP, 8)
    assert str(refusal.value) == (
        "WORLD_SIZE is 16 (RANK 8, meeting at group-0.group:29500) and this pod has 8 workers: groups over "
        "several nodes are not supported yet; unset WORLD_SIZE, and use one node with enough memory for the "
        "model"
    )


def test_a_group_that_says_too_little_is_refused_too() -> None:
    with pytest.raises(SettingError, match=r"RANK 0, meeting at \?:\?\) and this pod has 1 worker:"):
        check_group({"WORLD_SIZE": "2"}, 1)


@pytest.mark.parametrize(
    ("name", "value"), [("WORLD_SIZE", "two"), ("WORLD_SIZE", "-1"), ("RANK", "1.5"), ("MASTER_PORT", "http")]
)
def test_what_is_no_number_is_named(name: str, value: str) -> None:
    with pytest.raises(SettingError, match=f"{name} is '{value}': write a whole number, or unset it"):
        check_group(GROUP | {name: value}, 8)


def test_the_command_refuses_before_it_loads_anything(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert main(["--model", str(tmp_path), "--tensor-parallel", "2"]) == contract.EXIT_BAD_USAGE
    [line] = capsys.readouterr().err.splitlines()
    assert "WORLD_SIZE is 4" in line
    assert "this pod has 2 workers" in line
