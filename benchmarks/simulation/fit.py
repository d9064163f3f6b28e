"""From a replica's step times to simulated hardware, and from request times to simulated latencies. Pure."""

import random
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch

from millrace_operator.autoscaler.simulate.agenda import Agenda
from millrace_operator.autoscaler.simulate.engine import Answer, Engine
from millrace_operator.autoscaler.simulate.hardware import Hardware
from millrace_operator.autoscaler.simulate.load import Request
from testing.traffic import percentile


class Shape(NamedTuple):
    """The lengths of all requests of a load, in tokens."""

    prompt_tokens: int
    generation_tokens: int


class Point(NamedTuple):
    """Means over the steps of one fixed batch."""

    seconds: float
    tokens: float
    context_tokens: float
    period_seconds: float
    """From one step to the next, as clients see it; of prompts alone the same as `seconds`."""


class Tail(NamedTuple):
    """P95 of one load, in seconds."""

    first_token: float
    output_token: float


def fit_hardware(points: Sequence[Point], limits: Hardware) -> Hardware:
    """Return the roofline that misses the points least, relatively.

    A step takes α + β·max(knee, tokens) + γ·context. For each knee that a point suggests this is linear.
    """
    fits = [_fit_line(points, knee, limits) for knee in (0.0, *sorted(point.tokens for point in points))]
    return min(fits, key=lambda hardware: find_misfit(hardware, points))


def find_misfit(hardware: Hardware, points: Iterable[Point]) -> float:
    """Return the mean relative error of the fitted step times."""
    errors = [abs(hardware.step_seconds(p.tokens, p.context_tokens) / p.seconds - 1) for p in points]
    return statistics.mean(errors)


def _fit_line(points: Sequence[Point], knee: float, limits: Hardware) -> Hardware:
    regressors = [(1.0, max(knee, point.tokens), point.context_tokens) for point in points]
    rows = torch.tensor([[x / p.seconds for x in row] for row, p in zip(regressors, points, strict=True)])
    rows, active = rows.double(), [0, 1, 2]
    while active:
        scale = rows[:, active].abs().max(0).values
        found = torch.linalg.lstsq(rows[:, active] / scale, torch.ones(len(points), 1).double()).solution
        values = (found.flatten() / scale).tolist()
        if min(values) >= 0:
            break
        del active[values.index(min(values))]
    alpha, beta, gamma = (values[active.index(i)] if i in active else 0.0 for i in range(3))
    return replace(
        limits,
        overhead_seconds=alpha,
        weights_seconds=beta * knee,
        token_seconds=beta,
        context_seconds=gamma,
    )


def find_saturation(hardware: Hardware, shape: Shape) -> float:
    """Return the requests a second that a replica finishes with a full batch and no wait."""
    longest = shape.prompt_tokens + shape.generation_tokens
    batch = min(hardware.max_sequences, hardware.kv_tokens // longest)
    prefilled = batch * shape.prompt_tokens / shape.generation_tokens
    context = batch * (shape.prompt_tokens + shape.generation_tokens / 2)
    return batch / (shape.generation_tokens * hardware.step_seconds(batch + prefilled, context))


def simulate(hardware: Hardware, shape: Shape, times: Sequence[float], front_seconds: float) -> Tail:
    """Return P95 of one simulated replica that is sent requests at these times."""
    agenda, answers = Agenda(), list[Answer]()
    engine = Engine(agenda, hardware, random.Random(1), answers.append)  # noqa: S311  a simulation
    for at in times:
        request = Request(at, *shape)
        agenda.add(at, lambda request=request: engine.submit(request))  # type: ignore[misc]
    agenda.run_until(max(times) + 3600)
    paces = [answer.time_per_output_token or 0.0 for answer in answers]
    return Tail(
        front_seconds + percentile((answer.time_to_first_token for answer in answers), 95),
        percentile(paces, 95),
    )
