"""Each replica's hardware and limits in Prometheus' answer. `e2e/test_prometheus.py` asks a real one."""

import pytest

from millrace_operator.autoscaler.signals.inventory import build_question, read_replicas
from millrace_operator.autoscaler.signals.queries import Scope
from tests.operator.autoscaler.replicas import H100, make_series


def test_a_replica_is_read_from_labels_and_gauges() -> None:
    assert read_replicas(make_series()) == {"a": H100}


@pytest.mark.parametrize("signal", ["placement", "kv_cache_tokens", "max_model_length", "max_sequences"])
def test_a_pod_that_lacks_a_signal_is_unknown(signal: str) -> None:
    assert read_replicas({**make_series(), signal: []}) == {}


@pytest.mark.parametrize(
    "changes",
    [
        {"device_name": "x" * 129},
        {"device_name": ""},
        {"device_name": "\x1b[2J"},
        {"dtype": "bf16\n"},
        {"tensor_parallel": "many"},
        {"tensor_parallel": "0"},
        {"kv_cache_tokens": 1e300},
        {"kv_cache_tokens": -1.0},
        {"max_model_length": 0.5},
    ],
)
def test_what_the_resource_could_not_hold_is_left_out(changes: dict[str, str | float]) -> None:
    """Whoever may write metrics about a pod must not be able to have its service's status refused."""
    good = make_series("b")
    bad = make_series(**changes)
    assert read_replicas({name: bad[name] + good[name] for name in good}) == {"b": H100}


def test_two_series_of_one_pod_mean_the_same_in_any_order() -> None:
    one, other = make_series(), make_series(device_name="another")
    forwards = {**one, "placement": one["placement"] + other["placement"]}
    backwards = {**one, "placement": other["placement"] + one["placement"]}
    assert read_replicas(forwards) == read_replicas(backwards)


def test_the_question_is_about_replicas_in_the_services_namespaces() -> None:
    text = build_question(Scope(("shop", "team"), 'cluster="eu"')).text
    assert text.count('namespace=~"shop|team",cluster="eu"') == 4
    assert "millrace:replica_info{" in text
    assert "millrace:kv_cache_tokens{" in text
