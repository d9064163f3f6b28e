"""The cluster's prices, from the chart's values to the operator's flags."""

from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path

import pytest
import yaml

from millrace_operator.app.command import build_parser
from tests.monitoring.chart import render, run_helm

pytestmark = pytest.mark.slow
OPERATOR = ("Deployment", "millrace-operator")


def read_flags(helm: Path, *words: str) -> tuple[str, dict[str, Decimal]]:
    (container,) = render(helm, *words)[OPERATOR]["spec"]["template"]["spec"]["containers"]
    arguments = build_parser().parse_args(container["args"][1:])
    return arguments.currency, dict(arguments.resource_hour)


def test_a_plain_install_has_no_prices(programs: Mapping[str, Path]) -> None:
    assert read_flags(programs["helm"]) == ("USD", {})


def test_the_operator_reads_the_prices_of_the_values(programs: Mapping[str, Path], tmp_path: Path) -> None:
    hours = {"nvidia.com/gpu": "2.50", "cpu": "0.04", "memory": "0.005"}
    values = tmp_path / "values.yaml"
    values.write_text(yaml.safe_dump({"cost": {"resourceHours": hours, "currency": "EUR"}}))
    currency, found = read_flags(programs["helm"], "--values", str(values))
    assert (currency, found) == ("EUR", {name: Decimal(price) for name, price in hours.items()})


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ("cost.resourceHours.cpu=2", "/cost/resourceHours/cpu"),  # a number, which YAML may write anew
        ("cost.resourceHours.cpu=cheap", "/cost/resourceHours/cpu"),
        ("cost.currency=dollar", "/cost/currency"),
        ("cost.acceleratorHours.cpu=x", "'acceleratorHours' not allowed"),
    ],
)
def test_a_bad_price_is_refused_by_its_name(programs: Mapping[str, Path], setting: str, named: str) -> None:
    done = run_helm(programs["helm"], "--set", setting)
    assert done.returncode != 0
    assert named in done.stderr
