"""What `explain -v` says of money: what the replicas cost, and what a static peak would. Pure."""

from collections.abc import Iterator

from millrace_kubectl.facts import Facts
from millrace_kubectl.kubectl import Obj
from millrace_operator.api.numbers import parse_number

ROUNDING = 1e-5
"""Of a sum over some replicas, each of which is rounded in status."""
NO_PRICE = "no resource of a replica has a price (spec.cost, or cost.resourceHours of the chart)"


def describe_cost(facts: Facts) -> str:
    """Return the line of the service's cost."""
    if not facts.cost:
        return f"COST unknown: {NO_PRICE}"
    return f"COST {'; '.join(_list_parts(facts.cost))}"


def _list_parts(cost: Obj) -> Iterator[str]:
    money, tokens = cost.get("currency", "?"), cost.get("perMillionTokens")
    yield _show_sum(cost, money)
    yield "the price of tokens is unknown" if tokens is None else f"{tokens} {money} per 1M tokens"
    saved, peak = cost.get("savedPerHour", "?"), cost.get("peakReplicas", "?")
    yield f"{saved} {money}/h less than a static peak of {peak}"


def _show_sum(cost: Obj, money: str) -> str:
    """Return how the sum comes about, where all replicas cost the same."""
    total, replicas = cost.get("perHour", "?"), cost.get("replicas")
    if not _is_uniform(cost):
        return f"{total} {money}/h for {'?' if replicas is None else replicas} replicas that differ"
    terms = str(cost["pricedResources"])
    factor = f"({terms})" if " + " in terms else terms
    return f"{replicas} × {factor} {money}/h = {total} {money}/h"


def _is_uniform(cost: Obj) -> bool:
    """Whether each replica costs what a new one does: in a rollout they may differ."""
    each, total = (parse_number(cost.get(name)) for name in ("replicaPerHour", "perHour"))
    replicas = cost.get("replicas")
    if each is None or total is None or replicas is None or not cost.get("pricedResources"):
        return False
    return bool(abs(each * replicas - total) <= ROUNDING * replicas)
