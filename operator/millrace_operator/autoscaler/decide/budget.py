"""How fast an objective's error budget is spent, and when that asks for a replica. Pure.

P95 allows 5 % of requests to be late. The burn is how many times as many are late: at 1 the objective is just
kept. A percentile of one minute is above its target now and then although the objective is kept over the
hour. So what counts is the burn beyond the allowed one, added up over time: a large one asks for a replica
within seconds, a small one within minutes, and one that quiet minutes make up for never does.
"""

from collections.abc import Iterable, Mapping

from millrace_operator.api.status_lines import SPENT_SECONDS
from millrace_operator.autoscaler.signals.observation import Latency

ALLOWED_BURN = 1.0
QUIET = ALLOWED_BURN / 30
"""What a second makes up for in which too few requests come to say: a thirtieth of one with none late."""
AVERAGED_SECONDS = 300.0
"""Seconds of whose burn the average is taken, at most."""


def find_burn(latency: Latency) -> float:
    """Return how many times as many requests were late as the objective allows, at least.

    What is in the target's own bucket may be late or not, and is taken for in time.
    """
    allowed = 1 - latency.objective.percentile / 100
    if latency.bracket is None:
        return ALLOWED_BURN + 1 if latency.is_missed else 0.0
    return max(1 - latency.bracket.upper_share, 0.0) / allowed


def find_burns(latencies: Iterable[Latency]) -> dict[str, float]:
    """Return the burn of each objective that enough requests speak of."""
    return {latency.objective.name: find_burn(latency) for latency in latencies if latency.is_judged}


def average(mean: float, burn: float, elapsed: float, seconds: float) -> float:
    """Return the average burn after so many seconds more, of all that elapsed or the last minutes of it."""
    return mean + (burn - mean) * seconds / min(elapsed + seconds, AVERAGED_SECONDS)


def spend(spent: Mapping[str, float], burns: Mapping[str, float], seconds: float) -> dict[str, float]:
    """Return what each objective has spent beyond what is allowed, after so many seconds more.

    Where too few requests come to say, nothing more is spent, and what was is made up for within the hour.
    """
    rates = {name: burns[name] - ALLOWED_BURN if name in burns else -QUIET for name in spent.keys() | burns}
    sums = {name: spent.get(name, 0.0) + rate * seconds for name, rate in rates.items()}
    return {name: min(total, 2 * SPENT_SECONDS) for name, total in sums.items() if total > 0}
