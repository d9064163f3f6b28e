"""The cost of a service's replicas, and how much less it is than that of a static peak. Pure.

The money changes only with the replicas, the prices and the peak. The price of tokens comes from the evidence
in `status.scaling`, and is written together with it.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NamedTuple

from millrace_operator.api.conditions import parse_time, render_time
from millrace_operator.api.prices import Item, PriceError, Prices, add_prices, list_items
from millrace_operator.api.quantities import parse_number, render_number
from millrace_operator.api.types import Cost
from millrace_operator.kube.kinds import Obj
from millrace_operator.observed.pods import read_pod
from millrace_operator.rollout.revision import Revision
from millrace_runtime import contract

Json = dict[str, Any]
PEAK_SECONDS = 7 * 24 * 3600.0
LEAST_TOKENS_PER_SECOND = 1.0
"""Fewer tokens show how idle the replicas are, and not what a token costs under load."""
SMALLEST = Decimal("0.000001")
"""Sums are rounded to it."""
ITEMS_LENGTH = 1024
TOKENS_NAME = "perMillionTokens"


class Peak(NamedTuple):
    """The largest recent count, and when the count fell from it or rose to it."""

    replicas: int
    at: str


@dataclass(frozen=True)
class Bill:
    """What the replicas cost now."""

    status: Json
    """`status.cost` without the price of tokens."""
    changes_after: float | None
    """Seconds after which the peak no longer counts; None while it lasts."""

    def keep_tokens(self, old: Json) -> Json:
        """Return `status.cost` with the price of tokens as it was."""
        return {**self.status, **{name: old[name] for name in (TOKENS_NAME,) if name in old}}

    def price_tokens(self, evidence: Json) -> Json:
        """Return `status.cost` with the price of tokens at the load of this evidence."""
        per_second = parse_number(evidence.get("generatedTokensPerSecond"))
        price = render_number(price_million_tokens(float(self.status["perHour"]), per_second))
        return {**self.status, **({} if price is None else {TOKENS_NAME: price})}


def price_million_tokens(per_hour: float, tokens_per_second: float | None) -> float | None:
    """Return the cost of a million generated tokens; None if too few are generated."""
    if tokens_per_second is None or tokens_per_second < LEAST_TOKENS_PER_SECOND:
        return None
    return per_hour / (tokens_per_second * 3600.0) * 1e6


def find_prices(cluster: Prices, own: Cost | None) -> Prices:
    """Return the prices of a service, together with the cluster's in the same currency."""
    if own is None:
        return cluster
    try:
        return add_prices(cluster, own.currency, own.accelerator_hour, own.resource_hours)
    except PriceError:  # the API server refuses it; an older object with such a price has no price of its own
        return cluster


@dataclass(frozen=True)
class Fleet:
    """The replicas that cost something."""

    target: Revision
    revisions: Mapping[str, Revision]
    pods: Collection[Obj]
    desired: int
    changes: Sequence[Json]
    """The last changes of the count, the newest last."""


def draw_bill(prices: Prices, fleet: Fleet, old: Json, now: float) -> Bill | None:
    """Return the cost of the replicas; None if none has a price. `old` is `status.cost`."""
    items = _list_items(prices, fleet.target)
    held = [_find_revision(fleet, pod) for pod in fleet.pods if _holds_resources(pod)]
    each = _add(items)
    total = sum((_add(_list_items(prices, revision)) for revision in held), Decimal(0))
    if not items and not total:
        return None
    peak = _find_peak(fleet, len(held), old, now)
    status = {
        "currency": prices.currency,
        "replicas": len(held),
        "pricedResources": " + ".join(map(_show_item, items))[:ITEMS_LENGTH],
        "replicaPerHour": render_money(each),
        "perHour": render_money(total),
        "peakReplicas": peak.replicas,
        "peakAt": peak.at,
        "savedPerHour": render_money(max(Decimal(0), peak.replicas * each - total)),
    }
    return Bill(status, _forget_after(peak, fleet.desired, now))


def _list_items(prices: Prices, revision: Revision) -> list[Item]:
    """Return the priced resources of a revision's replica."""
    return list_items(prices, _read_limits(revision.template))


def _read_limits(template: Obj) -> Mapping[str, str]:
    for container in template.get("spec", {}).get("containers", []):
        if container.get("name") == contract.CONTAINER_REPLICA:
            return dict(container.get("resources", {}).get("limits", {}))
    return {}


def _add(items: Iterable[Item]) -> Decimal:
    return sum((item.amount * item.price for item in items), Decimal(0))


def _show_item(item: Item) -> str:
    return f"{render_money(item.amount)} {item.name} × {item.price:f}"


def _holds_resources(pod: Obj) -> bool:
    """Whether a node keeps resources for the pod, even while it starts or drains."""
    status = pod.get("status", {})
    conditions = {one.get("type"): one.get("status") for one in status.get("conditions", [])}
    has_node = bool(pod.get("spec", {}).get("nodeName")) or conditions.get("PodScheduled") == "True"
    return has_node and status.get("phase") not in ("Succeeded", "Failed")


def _find_revision(fleet: Fleet, pod: Obj) -> Revision:
    return fleet.revisions.get(read_pod(pod).revision, fleet.target)


def _find_peak(fleet: Fleet, num_held: int, old: Json, now: float) -> Peak:
    """Return the largest count of the last days, as far as status has it and nodes had room for it.

    A peak counts for seven days after the count fell from it. Then the largest of the recorded changes
    follows it.
    """
    before = Peak(old["peakReplicas"], old["peakAt"]) if "peakAt" in old else None
    most_held = max(num_held, old.get("replicas", 0), before.replicas if before else 0)
    left = [Peak(min(change["from"], most_held), change["at"]) for change in fleet.changes]
    left += [] if before is None else [before]
    lasting = [peak for peak in left if _end(peak) > now]
    lasting += [before] if before is not None and before.replicas <= fleet.desired else []
    present = Peak(min(fleet.desired, num_held), render_time(now))
    highest = max(lasting, default=present)
    return highest if highest.replicas >= present.replicas else present


def _end(peak: Peak) -> float:
    return (parse_time(peak.at) or 0.0) + PEAK_SECONDS


def _forget_after(peak: Peak, desired: int, now: float) -> float | None:
    return _end(peak) - now if peak.replicas > desired else None


def render_money(sum_: Decimal) -> str:
    """Return a sum as decimal text, without trailing zeros."""
    return format(sum_.quantize(SMALLEST).normalize(), "f")
