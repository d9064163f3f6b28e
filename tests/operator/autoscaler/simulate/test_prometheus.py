"""The signals of simulated replicas, and their limits."""

import pytest

from millrace_operator.autoscaler.decide.policy import Objective
from millrace_operator.autoscaler.signals.observation import Signals
from millrace_operator.autoscaler.signals.scrapes import DEFAULT_WINDOWS, Windows, fit_windows
from millrace_operator.autoscaler.simulate.agenda import Agenda
from millrace_operator.autoscaler.simulate.engine import Answer
from millrace_operator.autoscaler.simulate.hardware import Hardware
from millrace_operator.autoscaler.simulate.load import Request
from millrace_operator.autoscaler.simulate.prometheus import GATEWAY, Prometheus, Scraping
from millrace_operator.autoscaler.simulate.service import Service

OBJECTIVES = (Objective("TimeToFirstToken", 95, 1.0), Objective("TimePerOutputToken", 95, 0.1))
WHOLE, QUEUE = Objective("EndToEndLatency", 95, 5.0), Objective("QueueTime", 95, 0.1)
EXACT = Hardware(noise=0.0, unevenness=0.0, stalls_per_hour=0.0)


class World:
    """A service with two replicas, and four requests a second of 500 and 50 tokens."""

    def __init__(self, scraping: Scraping, rate: float = 4.0, windows: Windows = DEFAULT_WINDOWS) -> None:
        self.windows = windows
        self.agenda = Agenda()
        self.answers: list[Answer] = []
        self.service = Service(self.agenda, EXACT, 1, self.answers.append)
        self.service.start(2)
        self.prometheus = Prometheus(self.agenda, self.service, scraping, 2)
        for number in range(round(600 * rate)):
            request = Request(number / rate, 500, 50)
            self.agenda.add(request.at, lambda request=request: self.service.submit(request))  # type: ignore[misc]

    def see(self, at: float, objectives: tuple[Objective, ...] = OBJECTIVES) -> Signals:
        """Observe once before, as each tick does, and at a time."""
        self.prometheus.observe(objectives, self.windows)
        self.agenda.run_until(at)
        return self.prometheus.observe(objectives, self.windows)


@pytest.mark.parametrize("interval", [2.0, 5.0])
def test_a_steady_load_is_seen_as_it_is(interval: float) -> None:
    world = World(Scraping(interval))
    signals = world.see(300)
    assert signals.arrivals_per_second == pytest.approx(4.0, rel=0.05)
    assert signals.recent_arrivals_per_second == pytest.approx(4.0, rel=0.1)
    assert (signals.prompt_tokens, signals.generation_tokens) == pytest.approx((500, 50))
    assert (len(signals.fleet.revisions), len(signals.fleet.ready), len(signals.reporting)) == (2, 2, 2)
    assert (signals.max_sequences, signals.kv_tokens) == (256, 300_000)
    first, output = signals.latencies
    true = sorted(answer.time_to_first_token for answer in world.answers)[-len(world.answers) // 20]
    assert 0.1 < true <= 0.25
    assert 0.1 < first.seconds <= 0.25  # its bucket is all that is known
    assert first.num_samples == pytest.approx(240, rel=0.05)
    assert output.seconds < 0.05


def test_replicas_that_were_there_before_have_had_a_cold_start_too() -> None:
    starts = World(Scraping(5.0)).see(60).fleet.cold_starts
    assert len(set(starts.values())) == 2
    assert all(0.5 * EXACT.cold_start_seconds < one < 2 * EXACT.cold_start_seconds for one in starts.values())


def test_whole_requests_queues_and_lengths_are_seen_where_they_are_asked_for() -> None:
    world = World(Scraping(5.0))
    signals = world.see(300, (WHOLE, QUEUE))
    whole, queue = signals.latencies
    true = sorted(answer.end_to_end_latency for answer in world.answers)[-len(world.answers) // 20]
    assert 1.0 < true <= 1.5
    assert 1.0 < whole.seconds <= 1.5
    assert 0.0 < queue.seconds < 0.25
    assert queue.num_samples == pytest.approx(whole.num_samples, rel=0.02) == pytest.approx(240, rel=0.05)
    assert signals.answer_lengths is not None
    assert signals.answer_lengths.quantile(0.99) == pytest.approx(50, rel=0.01)
    assert signals.answer_lengths.answers == pytest.approx(240, rel=0.05)
    assert World(Scraping(5.0)).see(300, (QUEUE,)).answer_lengths is None


def test_a_pod_that_goes_before_it_was_scraped_once_is_forgotten() -> None:
    """One that is new has nothing to finish, and an autoscaler that changes its mind ends it."""
    world = World(Scraping(60.0), rate=0.1, windows=fit_windows(60.0))
    world.see(0.2)
    world.service.scale(1)
    world.see(0.4)
    signals = world.see(200)
    assert len(signals.reporting) == 1


def test_the_means_of_steps_are_those_that_were_computed() -> None:
    world = World(Scraping(5.0))
    signals = world.see(300)
    engines = {pod.name: pod.engine.counters for pod in world.service.pods}
    assert [steps.pod for steps in signals.steps] == ["pod-0", "pod-1"]
    for steps in signals.steps:
        counters = engines[steps.pod]
        assert steps.seconds == pytest.approx(counters.step_seconds / counters.steps, rel=0.05)
        assert steps.tokens == pytest.approx(counters.step_tokens / counters.steps, rel=0.05)


def test_before_the_first_scrapes_nothing_is_known() -> None:
    signals = World(Scraping(5.0)).see(0.01)
    assert (len(signals.fleet.revisions), len(signals.fleet.ready), len(signals.reporting)) == (2, 2, 0)
    assert (signals.arrival_rate, signals.running) == (None, None)


def test_where_scrapes_are_lost_a_rate_looks_like_less() -> None:
    """Prometheus takes no more than half a mean distance to the end of a window."""
    world = World(Scraping(5.0, lost_share=1.0))
    assert not world.see(300).reporting
    half = World(Scraping(5.0, lost_share=0.5)).see(300)
    assert half.arrivals_per_second is not None
    assert 2.0 < half.arrivals_per_second < 4.0


def test_a_target_whose_scrape_failed_has_no_present_values_but_its_rates_go_on() -> None:
    """Prometheus marks every series of a failed scrape as stale."""
    world = World(Scraping(5.0, is_unreachable=lambda target, at: target == "pod-0" and at >= 250))
    signals = world.see(260)
    assert signals.reporting == {"pod-1"}
    assert set(signals.sampled_at) == set(signals.in_flight) == {"pod-1"}
    assert signals.arrivals_per_second == pytest.approx(4.0, rel=0.05)
    assert world.see(330).arrivals_per_second == pytest.approx(4.0, rel=0.05)


def test_one_failed_scrape_makes_nobody_silent() -> None:
    """The operator remembers when each replica was seen, and asks for the last values of a while."""
    world = World(Scraping(5.0, is_unreachable=lambda target, at: target == "pod-0" and at >= 250))
    world.see(249)
    signals = world.see(256)
    assert signals.reporting == set(signals.in_flight) == {"pod-0", "pod-1"}
    assert world.see(270).reporting == {"pod-1"}


def test_an_unreachable_gateway_leaves_what_the_replicas_received() -> None:
    """Its counter ends; after a window only the replicas' are left."""
    world = World(Scraping(5.0, is_unreachable=lambda target, at: target == GATEWAY and at >= 200))
    signals = world.see(300)
    assert len(signals.reporting) == 2
    assert signals.rejected["arrivals"] == "no samples"
    assert signals.arrivals_per_second == pytest.approx(4.0, rel=0.05)


def test_after_a_restart_old_values_are_visible_until_new_ones_come() -> None:
    """Prometheus writes no marks when it ends. So 30 s later the old samples are there, and too old."""
    world = World(Scraping(5.0, is_down=lambda at: 200 <= at < 230))
    world.see(200)
    signals = world.see(230)
    assert len(signals.sampled_at) == 2
    assert all(194 < at < 200.1 for at in signals.sampled_at.values())
    assert not signals.reporting
    assert "no samples of the last 15 s" in signals.rejected["age"]
    assert len(world.see(236).reporting) == 2


def test_scrapes_are_late_but_do_not_drift() -> None:
    world = World(Scraping(5.0, jitter_seconds=0.5))
    times = sorted({world.see(at / 2).sampled_at["pod-0"] for at in range(20, 1200)})
    lateness = [at - times[0] - 5.0 * number for number, at in enumerate(times)]
    assert len({round(late, 6) for late in lateness}) > 100
    assert all(abs(late) < 0.51 for late in lateness)


def test_a_prometheus_that_is_down_says_so_and_has_a_gap_afterwards() -> None:
    world = World(Scraping(5.0, is_down=lambda at: 200 <= at < 400))
    blind = world.see(300)
    assert blind.rejected == {"every signal": "Prometheus did not answer"}
    assert (len(blind.fleet.revisions), len(blind.fleet.ready)) == (2, 2)
    assert world.see(402).recent_arrivals_per_second is None
    assert world.see(470).arrivals_per_second == pytest.approx(4.0, rel=0.05)


def test_at_a_long_interval_short_windows_are_empty_and_fitted_ones_are_not() -> None:
    """As at the default of many installations: a rate over 20 s never has two samples that are 30 s apart."""
    signals = World(Scraping(30.0)).see(300)
    assert signals.recent_arrivals_per_second is None
    assert signals.steps == ()
    fitted = World(Scraping(30.0), windows=fit_windows(30.0)).see(300)
    assert fitted.recent_arrivals_per_second == pytest.approx(4.0, rel=0.05)
    assert len(fitted.steps) == 2
