"""A whole turn of the engine over a device that only counts: its calls, and what they are charged."""

import os

import pytest

os.environ.setdefault("TRITON_INTERPRET", "1")  # read when triton is imported

from benchmarks.engine.turn import Turn, measure_turn, read_tariff

pytestmark = pytest.mark.reads("benchmarks", "kernels", "runtime/millrace_fit", "runtime/millrace_runtime")


@pytest.mark.slow
def test_a_turn_has_one_copy_each_way_one_replay_and_one_wait_beside_new_blocks() -> None:
    """Each of three sequences takes a block every 16 steps: a copy, and one launch that writes it."""
    turn = measure_turn(3, 2)
    beside = 3 / 16
    assert turn.calls == {
        "copies": 2 + beside,
        "replays": 1,
        "launches": beside,
        "Triton launches": 0,
        "events": 2,
        "waits": 1,
    }
    assert 0 < turn.step_seconds < turn.own_seconds


def test_calls_are_charged_by_the_kept_figures_of_a_gpus_host() -> None:
    tariff = read_tariff()
    assert tariff["Triton launches"] > tariff["launches"] == tariff["copies"] > 1e-6
    calls = {"copies": 2.0, "Triton launches": 1.0}
    assert Turn(0.0, 0.0, calls).charge({"copies": 3.0, "Triton launches": 5.0}) == 11.0
