"""Lanes: which tests run where."""

import re
import subprocess

import pytest

from testing.lanes import LANES, ROOT, list_files, render_command


def test_all_tests_of_a_file_run_on_one_worker() -> None:
    """They share fixtures: clusters, served models, processes to fork from."""
    files = ["tests/testing/test_budget.py", "tests/testing/test_rules.py"]
    command = render_command(LANES["units"], "units", ["-vv", *files])
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120).stdout
    ran = re.findall(r"^\[(gw\d+)\].* PASSED (\S+?)::", said, re.MULTILINE)
    assert {file for _, file in ran} == set(files), said
    assert len(set(ran)) == len(files), said


@pytest.mark.parametrize("name", [name for name, lane in LANES.items() if lane.workers_per_core == 0])
def test_a_lane_of_one_process_starts_no_worker(name: str) -> None:
    assert "-n" not in render_command(LANES[name], name, [])


def test_the_files_of_a_test_of_a_file_and_of_a_folder() -> None:
    assert list_files(["tests/testing/test_lanes.py::test_x", "tests/cli"]) == [
        "tests/cli/test_command.py",
        "tests/testing/test_lanes.py",
    ]


def test_units_leave_out_the_tests_with_other_peoples_clients() -> None:
    """Their environment is not this one, and their conftest.py does not load here."""
    others = [path for path in (ROOT / "tests").iterdir() if path.name not in ("clients", "testing")]
    ignored = [f"--ignore={path}" for path in others if path.is_dir()]
    command = render_command(LANES["units"], "units", ["-n", "0", "--collect-only", *ignored, "tests"])
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout
    assert "tests/clients" not in done.stdout
