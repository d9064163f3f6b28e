"""What is said while something takes its time, and what it took."""

from itertools import count
from pathlib import Path

import pytest

from e2e.cluster.errors import PartFailedError
from e2e.cluster.product import wait_while
from e2e.cluster.progress import Laps, progress


def test_laps_add_up_and_are_told_in_their_order() -> None:
    laps = Laps(iter([10.0, 12.5, 13.0]).__next__)
    laps.end("cluster")
    laps.end("chart")
    assert laps.seconds == {"cluster": 2.5, "chart": 0.5}
    assert laps.total == 3.0
    assert laps.describe() == "cluster 2.5 s, chart 0.5 s"


def test_what_is_done_is_named_at_its_beginning_and_how_it_ended_at_its_end(tmp_path: Path) -> None:
    said, log = list[str](), tmp_path / "log"
    with progress("go", "downloading", log, said.append, "lines"):
        pass
    with pytest.raises(OSError, match="full"), progress("go", "building", log, said.append, "lines"):
        raise OSError("full")
    assert said[::2] == [f"go: downloading (log: {log})", f"go: building (log: {log})"]
    assert [line.rpartition(" in ")[0] or line.rpartition(" after ")[0] for line in said[1::2]] == [
        "go: done",
        "go: failed",
    ]


def test_a_wait_says_each_new_line_once() -> None:
    lines, said = iter(["none ready", "none ready", "one ready", ""]), list[str]()
    wait_while(lambda: next(lines), said.append, "kubectl get pods")
    assert said == ["none ready", "one ready"]


def test_a_wait_that_is_too_long_names_its_last_line_and_what_to_run() -> None:
    numbers = count()
    with pytest.raises(PartFailedError, match=r"millrace: after 0 s: \d+ ready; see: kubectl get pods"):
        wait_while(lambda: f"{next(numbers)} ready", lambda _: None, "kubectl get pods", seconds=0)
