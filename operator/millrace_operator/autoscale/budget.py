"""How fast an objective's error budget is spent, and when that asks for a replica. Pure.

P95 allows 5 % of requests to be late. The burn is how many times as many are late: at 1 the objective is just
kept. A percentile of one minute is above its target now and then although the objective is kept over the
hour. So what counts is the burn beyond the allowed one, added up over time: a large one asks for a replica
within seconds, a small one within minutes, and one that quiet minutes make up for never does.
"""

from collections.abc import Iterable, Mapping

from millrace_operator.autoscale.observation import Latency
from millrace_operator.resources.evidence_limits import SPENT_SECONDS

ALLOWED_BURN = 1.0


def find_burn(latency: Latency) -> float:
    """Return how many times as many requests were late as the objective allows, at least.

    What is in the target's own bucket may be late or not, and is taken for in time.
    """
    allowed = 1 - latency.objective.percentile / 100
    if latency.bracket is None:
        return ALLOWED_BURN + 1 if latency.is_missed else 0.0
    return max(1 - latency.bracket.upper_share, 0.0) / allowed


def spend(spent: Mapping[str, float], latencies: Iterable[Latency], seconds: float) -> dict[str, float]:
    """Return what each objective has spent beyond what is allowed, after so many seconds more.

    Where too few requests come to say, nothing more is spent, and what was is made up for as time goes by.
    """
    burns = {latency.objective.name: find_burn(latency) for latency in latencies if latency.is_judged}
    sums = {
        name: spent.get(name, 0.0) + (burns.get(name, 0.0) - ALLOWED_BURN) * seconds
        for name in spent.keys() | burns.keys()
    }
    return {name: min(total, 2 * SPENT_SECONDS) for name, total in sums.items() if total > 0}
