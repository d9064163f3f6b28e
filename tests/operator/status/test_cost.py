"""What a service costs, as its status says it: whole sequences of a service's life, and odd amounts."""

from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from millrace_operator.api.conditions import render_time
from millrace_operator.api.prices import Prices
from millrace_operator.api.types import Cost, Status
from millrace_operator.observed.snapshot import Advice
from millrace_operator.render.settings import RenderSettings
from millrace_operator.status.cost import PEAK_SECONDS, find_prices, price_million_tokens
from millrace_operator.status.scaling_status import PERIOD_SECONDS
from testing.world import BEGAN, World

SCALING = {"mode": "Automatic", "minReplicas": 1, "maxReplicas": 90}
GPUS = {"limits": {"nvidia.com/gpu": 2, "memory": "64Gi", "cpu": "500m"}}
OWN = {"acceleratorHour": "2.50", "currency": "USD"}
CLUSTER = Prices("USD", {"nvidia.com/gpu": Decimal(4), "cpu": Decimal("0.04")})


class Shop(World):
    """A world whose autoscaler tells counts and tokens, in a cluster that may have prices."""

    def __init__(self, prices: Prices | None = None, **spec: Any) -> None:
        self.settings = RenderSettings(prices=prices or Prices())
        super().__init__(**{"scaling": SCALING, "resources": GPUS, **spec})

    def tell(self, desired: int, tokens: str | None = None) -> None:
        evidence = {"observedAt": render_time(self.now), "arrivalsPerSecond": "10"}
        evidence |= {} if tokens is None else {"generatedTokensPerSecond": tokens}
        self.advice = Advice(
            desired, "Steady", "as it is", "forecast", is_held=False, wanted=desired, evidence=evidence
        )

    async def scale(self, desired: int, tokens: str | None = None) -> dict[str, Any]:
        self.tell(desired, tokens)
        await self.settle()
        return self.cost

    @property
    def cost(self) -> dict[str, Any]:
        Status.model_validate(self.status)
        found: dict[str, Any] = self.status.get("cost", {})
        return found


async def test_it_costs_its_replicas_and_saves_what_the_peak_would_cost_more() -> None:
    shop = Shop(cost=OWN)
    await shop.scale(6)
    shop.now += 3600
    peak_at = render_time(shop.now)
    assert await shop.scale(4, tokens="6944.4") == {
        "currency": "USD",
        "replicas": 4,
        "pricedResources": "2 nvidia.com/gpu × 2.50",
        "replicaPerHour": "5",
        "perHour": "20",
        "perMillionTokens": "0.8",
        "peakReplicas": 6,
        "peakAt": peak_at,
        "savedPerHour": "10",
    }


async def test_without_a_price_there_is_no_cost() -> None:
    shop = Shop()
    assert await shop.scale(3, tokens="1000") == {}
    shop.edit(cost={"resourceHours": {"amd.com/gpu": "3"}})
    assert await shop.scale(3) == {}


async def test_a_price_that_is_taken_away_takes_the_cost_along() -> None:
    shop = Shop(cost=OWN)
    assert (await shop.scale(2))["perHour"] == "10"
    shop.edit(cost=None)
    assert await shop.scale(2) == {}


async def test_no_price_makes_a_revision() -> None:
    shop = Shop()
    await shop.scale(2)
    before, pods = shop.status["updateRevision"], shop.pods()
    shop.edit(cost=OWN)
    assert (await shop.scale(2))["perHour"] == "10"
    assert (shop.status["updateRevision"], shop.pods()) == (before, pods)


async def test_the_cluster_s_prices_hold_where_the_service_has_none_of_its_own() -> None:
    shop = Shop(CLUSTER)
    assert (await shop.scale(1))["replicaPerHour"] == "8.02"
    shop.edit(cost={"acceleratorHour": "2.50"})
    assert (await shop.scale(1))["replicaPerHour"] == "5.02"
    shop.edit(cost={"acceleratorHour": "2.50", "currency": "EUR"})  # dollars can't be added to euros
    cost = await shop.scale(1)
    assert (cost["replicaPerHour"], cost["currency"]) == ("5", "EUR")
    shop.edit(cost={"resourceHours": {"nvidia.com/gpu": "1", "memory": "0.005"}})
    assert (await shop.scale(1))["replicaPerHour"] == "2.34"


async def test_another_price_of_the_cluster_counts_after_a_restart_of_the_operator() -> None:
    shop = Shop(CLUSTER)
    assert (await shop.scale(1))["perHour"] == "8.02"
    shop.settings = RenderSettings(prices=replace(CLUSTER, hours={"nvidia.com/gpu": Decimal(3)}))
    shop.restart_operator()
    assert (await shop.scale(1))["perHour"] == "6"


async def test_replicas_that_start_and_drain_cost_and_those_without_a_node_do_not() -> None:
    shop = Shop(cost=OWN)
    await shop.scale(2)
    shop.tell(4)
    await shop.reconcile_until_quiet()
    shop.capacity = 3
    shop.run_controllers()  # one gets a node, one does not
    await shop.reconcile_until_quiet()
    assert (shop.cost["replicas"], shop.cost["perHour"]) == (3, "15")
    leaving = shop.pods()[0]
    gone = {**leaving["metadata"], "deletionTimestamp": "2026-01-01T01:00:00Z"}
    shop.cluster.put({**leaving, "metadata": gone})
    await shop.reconcile_until_quiet()
    assert (shop.cost["replicas"], shop.status["readyReplicas"]) == (3, 2)
    shop.cluster.put({**leaving, "metadata": gone, "status": {"phase": "Succeeded"}})
    await shop.reconcile_until_quiet()
    assert (shop.cost["replicas"], shop.cost["perHour"]) == (2, "10")


async def test_in_a_rollout_each_replica_costs_what_its_own_revision_has() -> None:
    shop = Shop(cost=OWN)
    await shop.scale(2)
    shop.edit(resources={"limits": {"nvidia.com/gpu": 4}})
    await shop.reconcile_until_quiet()
    shop.run_controllers()  # the surge: one new replica beside two old ones
    await shop.reconcile_until_quiet()
    cost = shop.cost
    assert (cost["replicas"], cost["replicaPerHour"]) == (len(shop.pods()), "10")
    old = len(shop.pods()) - 1
    assert cost["perHour"] == str(5 * old + 10)
    assert (await shop.scale(2))["perHour"] == "20"
    assert (shop.cost["peakReplicas"], shop.cost["savedPerHour"]) == (2, "0")


async def test_a_peak_is_forgotten_seven_days_after_the_count_fell_from_it() -> None:
    shop = Shop(cost=OWN)
    for desired in (9, 3, 5, 2):
        await shop.scale(desired)
        shop.now += 86400
    fell_from_9, fell_from_5 = BEGAN + 86400.0, BEGAN + 3 * 86400.0
    assert (shop.cost["peakReplicas"], shop.cost["savedPerHour"]) == (9, "35")
    shop.now = fell_from_9 + PEAK_SECONDS - 1
    assert await shop.reconcile_until_quiet() == 0
    wait = (await shop.reconcile()).look_again
    assert wait is not None
    assert 0 < wait <= 1
    shop.now += wait
    assert await shop.reconcile_until_quiet() == 1
    assert (shop.cost["peakReplicas"], shop.cost["peakAt"]) == (5, render_time(fell_from_5))
    shop.now = fell_from_5 + PEAK_SECONDS
    await shop.settle()
    assert (shop.cost["peakReplicas"], shop.cost["savedPerHour"]) == (2, "0")


async def test_a_count_that_stays_at_its_peak_is_never_forgotten_and_writes_nothing() -> None:
    shop = Shop(cost=OWN)
    await shop.scale(4)
    rose = shop.cost["peakAt"]
    shop.now += 3 * PEAK_SECONDS
    assert await shop.reconcile_until_quiet() == 0
    assert await shop.scale(3)
    assert (shop.cost["peakReplicas"], shop.cost["peakAt"] > rose) == (4, True)


async def test_a_peak_outlives_the_record_of_changes_and_the_operator() -> None:
    shop = Shop(cost=OWN)
    await shop.scale(12)
    for _ in range(30):
        shop.now += 60
        await shop.scale(3)
        await shop.scale(2)
    shop.restart_operator()
    assert not [one for one in shop.status["scaling"]["lastChanges"] if " 12 -> " in one]
    assert (await shop.scale(2))["peakReplicas"] == 12


async def test_the_price_of_tokens_is_written_no_more_often_than_the_figures() -> None:
    shop = Shop(cost=OWN)
    before = await shop.scale(2, tokens="1000")
    assert before["perMillionTokens"] == "2.78"
    for tokens in ("1010", "2000", "1500"):
        shop.now += 10
        shop.tell(2, tokens)
        assert await shop.reconcile_until_quiet() == 0
    shop.now += PERIOD_SECONDS
    shop.tell(2, "2000")
    assert await shop.reconcile_until_quiet() == 1
    assert shop.cost == {**before, "perMillionTokens": "1.39"}
    shop.now += PERIOD_SECONDS
    shop.tell(2)
    assert await shop.reconcile_until_quiet() == 1
    assert "perMillionTokens" not in shop.cost


@pytest.mark.parametrize(
    ("tokens", "price"),
    [
        (None, None),
        (0.0, None),
        (1e-9, None),
        (0.99, None),
        (1.0, pytest.approx(2777.78)),
        (1e4, pytest.approx(0.2778, abs=1e-4)),
    ],
)
def test_too_few_tokens_have_no_price(tokens: float | None, price: float | None) -> None:
    assert price_million_tokens(10.0, tokens) == price


@pytest.mark.parametrize(
    "amount", ["1e12", "many", "-1", "0", "NaN", "Infinity", "1_000", "٣", "1e999999999"]
)
async def test_an_amount_that_no_node_has_breaks_no_status(amount: str) -> None:
    shop = Shop(cost={"resourceHours": {"cpu": "9999999"}}, resources={"limits": {"cpu": amount}})
    assert await shop.scale(1) == {}


async def test_the_largest_sum_is_one_that_status_can_hold() -> None:
    limits = {"cpu": 10**9 - 1, "memory": f"{10**9 - 1}Gi"}
    shop = Shop(
        cost={"resourceHours": dict.fromkeys(limits, "9999999.999999999")}, resources={"limits": limits}
    )
    cost = await shop.scale(3)
    assert cost["perHour"].startswith("59999999")


async def test_in_mode_external_money_is_known_and_tokens_are_not() -> None:
    shop = Shop(cost=OWN, scaling={"mode": "External"}, replicas=3)
    await shop.settle()
    assert (shop.cost["perHour"], "perMillionTokens" in shop.cost) == ("15", False)
    shop.edit(replicas=0)
    await shop.settle()
    assert (shop.cost["perHour"], shop.cost["savedPerHour"]) == ("0", "15")


def test_a_price_that_the_api_server_would_refuse_leaves_the_cluster_s() -> None:
    assert find_prices(CLUSTER, Cost(accelerator_hour="free")) == CLUSTER


async def test_the_surge_of_a_rollout_costs_and_saves_nothing() -> None:
    shop = Shop(cost=OWN)
    await shop.scale(2)
    shop.edit(engine={"maxSequences": 4})
    await shop.reconcile_until_quiet()
    shop.run_controllers()
    await shop.reconcile_until_quiet()
    assert (shop.cost["perHour"], shop.cost["peakReplicas"], shop.cost["savedPerHour"]) == ("15", 2, "0")


async def test_priced_replicas_cost_until_the_last_has_gone_though_new_ones_have_no_price() -> None:
    shop = Shop(cost={"resourceHours": {"nvidia.com/gpu": "2.50"}})
    await shop.scale(2)
    shop.edit(resources={"limits": {"amd.com/gpu": 1}})
    await shop.reconcile_until_quiet()
    shop.run_controllers()
    await shop.reconcile_until_quiet()
    assert (shop.cost["perHour"], shop.cost["replicaPerHour"], shop.cost["pricedResources"]) == (
        "10",
        "0",
        "",
    )
    assert await shop.scale(2) == {}


async def test_a_pod_costs_only_from_when_a_node_was_found_for_it() -> None:
    shop = Shop(cost=OWN)
    await shop.scale(2)
    first, second = shop.pods()
    shop.cluster.put({**first, "status": {"phase": "Pending"}})  # no scheduler has looked at it yet
    await shop.reconcile_until_quiet()
    assert shop.cost["perHour"] == "5"
    shop.cluster.put({**first, "spec": {"nodeName": "node-1"}, "status": {"phase": "Pending"}})
    await shop.reconcile_until_quiet()
    assert (shop.cost["perHour"], second in shop.pods()) == ("10", True)


async def test_replicas_that_never_had_a_node_are_no_peak() -> None:
    shop = Shop(cost=OWN)
    await shop.scale(3)
    shop.now += 3600
    shop.capacity = 4
    assert (await shop.scale(60))["peakReplicas"] == 4
    shop.now += 3600
    cost = await shop.scale(3)
    assert (cost["peakReplicas"], cost["savedPerHour"]) == (4, "5")
