"""Ratios are taken within a round, and against the peer that we do worst against."""

import pytest

from benchmarks.runtime.figures import (
    OURS,
    Comparison,
    Manner,
    Row,
    Spread,
    compare_manners,
    compare_with_best,
    ratios,
    spread,
)

HTTP, LIBRARY = Manner.HTTP, Manner.LIBRARY


def row(engine: str, manner: Manner, precision: str = "bf16") -> Row:
    return Row("single", precision, engine, manner)


def test_a_ratio_of_rounds_ignores_that_the_machine_slowed_down_for_all() -> None:
    assert spread(ratios([50, 25, 10], [100, 50, 20])) == Spread(0.5, 0.5, 0.5, (0.5, 0.5, 0.5))


def test_rounds_that_one_engine_lacks_are_no_ratio() -> None:
    with pytest.raises(ValueError, match="shorter"):
        ratios([1.0, 2.0], [1.0])


def test_the_best_peer_is_the_one_we_do_worst_against_in_its_own_manner() -> None:
    rates = {
        row(OURS, HTTP): [40.0, 44.0, 42.0],
        row(OURS, LIBRARY): [80.0, 80.0, 80.0],
        row("server", HTTP): [80.0, 80.0, 80.0],
        row("slow server", HTTP): [20.0, 20.0, 20.0],
        row("library", LIBRARY): [100.0, 100.0, 100.0],
    }
    assert compare_with_best(rates, "single", "bf16") == Comparison(
        spread([0.5, 0.55, 0.525]), "server over HTTP"
    )
    rates[row("library", LIBRARY)] = [200.0, 160.0, 160.0]
    assert compare_with_best(rates, "single", "bf16") == Comparison(
        spread([0.4, 0.5, 0.5]), "library in process"
    )


def test_without_a_peer_or_without_ours_there_is_no_ratio() -> None:
    assert compare_with_best({row(OURS, HTTP): [1.0]}, "single", "bf16") is None
    assert compare_with_best({row("server", HTTP): [1.0]}, "single", "bf16") is None
    int8_alone = {row(OURS, HTTP): [1.0], row("server", HTTP, "int8"): [1.0]}
    assert compare_with_best(int8_alone, "single", "int8") is None


def test_what_http_leaves_of_our_rate() -> None:
    rates = {row(OURS, HTTP): [9.0, 8.0], row(OURS, LIBRARY): [10.0, 10.0]}
    assert compare_manners(rates, "single", "bf16") == spread([0.9, 0.8])
    assert compare_manners(rates, "c32", "bf16") is None
