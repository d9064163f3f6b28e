"""Prices of resources for an hour, and which resources of a replica have one. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import NamedTuple

from millrace_operator.api.quantities import parse_quantity

PRICE_LENGTH = 17
PRICE_PATTERN = r"^[0-9]{1,7}([.][0-9]{1,9})?$"
CURRENCY_LENGTH = 3
CURRENCY_PATTERN = "^[A-Z]{3}$"
DEFAULT_CURRENCY = "USD"
MOST_UNITS = Decimal(10) ** 9
"""Of one resource. No node has more, and the sums stay short enough for status."""
_BYTES = frozenset({"memory", "ephemeral-storage"})
"""Resources that are counted in bytes and priced by the GiB, as huge pages are."""


class PriceError(ValueError):
    """A price that can't be read; the text says what to write."""


@dataclass(frozen=True)
class Prices:
    """What an hour of each resource costs."""

    currency: str = DEFAULT_CURRENCY
    hours: Mapping[str, Decimal] = field(default_factory=dict)
    """By the resource's name."""
    accelerator_hour: Decimal | None = None
    """The price of a resource that has a slash in its name, and no price by its name."""

    def find(self, name: str) -> Decimal | None:
        """Return the price of a unit of this resource for an hour; None without a price."""
        return self.hours.get(name, self.accelerator_hour if is_accelerator(name) else None)


class Item(NamedTuple):
    """A resource of a replica, with its price."""

    name: str
    amount: Decimal
    price: Decimal


def add_prices(
    cluster: Prices, currency: str | None, accelerator_hour: str | None, resource_hours: Mapping[str, str]
) -> Prices:
    """Return a service's prices together with the cluster's in the same currency. Raises PriceError."""
    money = parse_currency(currency) if currency else cluster.currency
    hours = {name: parse_price(text) for name, text in resource_hours.items()}
    accelerator = parse_price(accelerator_hour) if accelerator_hour else None
    shared = dict(cluster.hours) if money == cluster.currency else {}
    if accelerator is not None:
        shared = {name: price for name, price in shared.items() if not is_accelerator(name)}
    return Prices(money, {**shared, **hours}, accelerator)


def list_items(prices: Prices, limits: Mapping[str, str]) -> list[Item]:
    """Return the resources of a replica with these limits that have a price."""
    found = [(name, _read_units(name, text), prices.find(name)) for name, text in sorted(limits.items())]
    return [Item(name, units, price) for name, units, price in found if units and price is not None]


def _read_units(name: str, text: str) -> Decimal | None:
    """Return the amount in units: CPUs, GiB or pieces; None for an amount that no node has."""
    try:
        amount = parse_quantity(str(text))
    except ValueError:
        return None
    units = amount / 2**30 if name in _BYTES or name.startswith("hugepages-") else amount
    return units if 0 < units < MOST_UNITS else None


def is_accelerator(name: str) -> bool:
    """Whether a resource belongs to a device plugin: only their names have a slash."""
    return "/" in name


def parse_price(text: str) -> Decimal:
    """Return the price. Raises PriceError."""
    if not re.fullmatch(PRICE_PATTERN, text):
        raise PriceError(f"{text!r} is no price of an hour; write decimal text such as 2.50")
    return Decimal(text)


def parse_currency(text: str) -> str:
    """Return the currency. Raises PriceError."""
    if not re.fullmatch(CURRENCY_PATTERN, text):
        raise PriceError(f"{text!r} is no currency; write three capital letters such as USD")
    return text


def parse_resource_hour(text: str) -> tuple[str, Decimal]:
    """Return the resource and its price from NAME=PRICE. Raises PriceError."""
    name, _, price = text.partition("=")
    if not name.strip() or not price:
        raise PriceError(f"{text!r} names no price; write NAME=PRICE such as nvidia.com/gpu=2.50")
    return name.strip(), parse_price(price)
