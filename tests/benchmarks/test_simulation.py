"""How a replica's steps become simulated hardware, and what the command refuses."""

from dataclasses import replace

import pytest
from tokenizers import Tokenizer

from benchmarks.runtime.metrics import sum_series
from benchmarks.simulation.__main__ import LIMITS, Row, main, print_table
from benchmarks.simulation.fit import (
    Point,
    Shape,
    Tail,
    find_misfit,
    find_saturation,
    fit_hardware,
    simulate,
)
from benchmarks.simulation.replica import write_prompt
from millrace_operator.autoscaler.simulate.hardware import Hardware
from stories_training.train import FOLDER

BATCHES = [(1, 100), (4, 400), (16, 1600), (4, 1600), (16, 6000), (40, 0), (128, 0), (448, 0)]
"""Tokens and context."""


def points_of(hardware: Hardware) -> list[Point]:
    times = [hardware.step_seconds(tokens, context) for tokens, context in BATCHES]
    return [Point(seconds, *batch, seconds) for seconds, batch in zip(times, BATCHES, strict=True)]


@pytest.mark.parametrize("knee", [0.0, 16.0, 40.0])
def test_a_roofline_is_found_again(knee: float) -> None:
    true = replace(
        LIMITS, overhead_seconds=1e-3, weights_seconds=1e-4 * knee, token_seconds=1e-4, context_seconds=5e-7
    )
    fitted = fit_hardware(points_of(true), LIMITS)
    assert find_misfit(fitted, points_of(true)) < 1e-6
    assert fitted.token_seconds == pytest.approx(1e-4)
    assert fitted.context_seconds == pytest.approx(5e-7)
    assert fitted.max_sequences == LIMITS.max_sequences


def test_no_cost_is_negative() -> None:
    """Steps that get shorter with more context are noise."""
    points = [Point(0.01 - 1e-7 * context, tokens, context, 0.01) for tokens, context in BATCHES]
    fitted = fit_hardware(points, LIMITS)
    assert min(fitted.overhead_seconds, fitted.token_seconds, fitted.context_seconds) >= 0


def test_at_saturation_a_simulated_queue_grows_and_below_it_does_not() -> None:
    hardware, shape = replace(LIMITS, noise=0.0), Shape(32, 128)
    rate = find_saturation(hardware, shape)

    def wait(load: float) -> float:
        times = [number / (load * rate) for number in range(1500)]
        return simulate(hardware, shape, times, 0.0).first_token

    assert wait(0.9) < 0.2
    assert wait(1.2) > 5.0


def test_what_a_request_costs_beside_its_steps_is_added_once() -> None:
    without, with_front = (simulate(LIMITS, Shape(32, 8), [0.0, 5.0], front) for front in (0.0, 0.5))
    assert with_front.first_token == pytest.approx(without.first_token + 0.5)
    assert with_front.output_token == without.output_token


def test_metrics_are_summed_over_their_labels() -> None:
    text = '# TYPE a counter\na{kind="decode"} 1.5\na{kind="mixed"} 2\nb 1e3\n'
    assert sum_series(text) == {"a": 3.5, "b": 1000.0}


@pytest.mark.parametrize("num_tokens", [32, 256])
def test_a_prompt_has_as_many_tokens_as_it_is_to_have(num_tokens: int) -> None:
    tokenizer = Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
    found = len(tokenizer.encode(write_prompt(tokenizer, num_tokens)).ids)
    assert num_tokens - 1 <= found <= num_tokens


def test_a_row_says_how_far_off_the_simulation_is(capsys: pytest.CaptureFixture[str]) -> None:
    print_table([Row(Shape(32, 128), 0.6, 4.5, 540, Tail(0.2, 0.01), Tail(0.21, 0.008))])
    assert "+5.0%" in (shown := capsys.readouterr().out)
    assert "-20.0%" in shown


@pytest.mark.parametrize(
    ("flags", "advice"),
    [
        (["--loads", "0.3,1.2"], "write shares between 0 and 1"),
        (["--loads", "much"], "write shares between 0 and 1"),
        (["--seconds", "1"], "write 5 or more"),
        (["--model", "/nowhere"], "write a model's folder"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    flags: list[str], advice: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(flags)
    assert advice in " ".join(capsys.readouterr().err.split())
