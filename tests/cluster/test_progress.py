"""What is said while something takes its time, and what it took."""

from itertools import count

import pytest

from e2e.cluster import progress
from e2e.cluster.errors import PartFailedError
from e2e.cluster.product import wait_while
from e2e.cluster.progress import Laps


def test_laps_add_up_and_are_told_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([10.0, 12.5, 13.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    laps = Laps()
    laps.end("cluster")
    laps.end("chart")
    assert laps.seconds == {"cluster": 2.5, "chart": 0.5}
    assert laps.total == 3.0
    assert laps.describe() == "cluster 2.5 s, chart 0.5 s"


def test_a_wait_says_each_new_line_once() -> None:
    lines, said = iter(["none ready", "none ready", "one ready", ""]), list[str]()
    wait_while(lambda: next(lines), said.append, "kubectl get pods")
    assert said == ["none ready", "one ready"]


def test_a_wait_that_is_too_long_names_its_last_line_and_what_to_run() -> None:
    numbers = count()
    with pytest.raises(PartFailedError, match=r"millrace: after 0 s: \d+ ready; see: kubectl get pods"):
        wait_while(lambda: f"{next(numbers)} ready", lambda _: None, "kubectl get pods", seconds=0)
