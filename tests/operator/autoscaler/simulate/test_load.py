"""A service's clients: how bursty each is, how much it carries, and what the day looks like together."""

import random
import statistics
from itertools import pairwise

import pytest

from millrace_operator.autoscaler.simulate.load import Client, Clients, fixed_lengths, share_by_rank
from millrace_operator.autoscaler.simulate.workloads import large_day, small_day

FLAT = {"swing": 0.0, "wobble": 0.0}


@pytest.mark.parametrize("variation", [1.0, 3.0])
def test_a_clients_gaps_vary_as_it_says(variation: float) -> None:
    client = Client(1.0, variation, 0.0, fixed_lengths(100, 10))
    requests = list(Clients((client,), 2.0, 40_000.0, **FLAT).requests(seed=1))
    gaps = [other.at - one.at for one, other in pairwise(requests)]
    assert statistics.mean(gaps) == pytest.approx(0.5, rel=0.05)
    assert statistics.stdev(gaps) / statistics.mean(gaps) == pytest.approx(variation, rel=0.1)


def test_requests_of_all_clients_come_in_order_each_with_its_clients_lengths() -> None:
    short = Client(0.75, 1.0, 0.0, fixed_lengths(100, 10))
    long = Client(0.25, 1.0, 0.0, fixed_lengths(4000, 500))
    requests = list(Clients((short, long), 1.0, 20_000.0, **FLAT).requests(seed=1))
    assert requests == sorted(requests)
    share = sum(request.prompt_tokens < 1000 for request in requests) / len(requests)
    assert share == pytest.approx(0.75, abs=0.02)


@pytest.mark.parametrize("workload", [small_day(), large_day()], ids=lambda workload: workload.name)
@pytest.mark.parametrize("seed", [1, 2])
def test_a_days_busiest_hour_has_about_two_and_a_half_times_the_load_of_the_calmest(
    workload: object, seed: int
) -> None:
    source = workload.source  # type: ignore[attr-defined]
    assert isinstance(source, Clients)
    rng = random.Random(seed)
    knots = [sum(column) for column in zip(*[source.rates(c, rng) for c in source.clients], strict=True)]
    hours = [statistics.mean(knots[4 * hour : 4 * hour + 5]) for hour in range(24)]
    assert 2.1 <= max(hours) / min(hours) <= 2.9
    assert hours.index(max(hours)) in range(8, 17)


@pytest.mark.parametrize(("workload", "top_five"), [(small_day(), 0.77), (large_day(), 0.43)])
def test_the_top_five_clients_carry_what_servegen_found(workload: object, top_five: float) -> None:
    clients = workload.source.clients  # type: ignore[attr-defined]
    assert sum(client.share for client in clients) == pytest.approx(1.0)
    assert sum(sorted(client.share for client in clients)[-5:]) == pytest.approx(top_five, abs=0.01)
    assert 2 <= sum(client.share * client.variation for client in clients) <= 12


def test_shares_fall_with_the_rank() -> None:
    assert share_by_rank(3, 1.0) == pytest.approx([6 / 11, 3 / 11, 2 / 11])
