import pytest
from prometheus_client import CollectorRegistry
from prometheus_client import Histogram as TheirHistogram

from millrace_runtime.api.metrics import Histogram


def test_buckets_are_as_prometheus_client_counts_them() -> None:
    bounds, values = (0.001, 1.0, 2.5), (0.0, 0.001, 0.5, 1.0, 1.1, 9.0)
    ours, registry = Histogram(bounds), CollectorRegistry()
    theirs = TheirHistogram("x", "x", buckets=bounds, registry=registry)
    for value in values:
        ours.observe(value)
        theirs.observe(value)
    for bound, count in ours.buckets():
        assert registry.get_sample_value("x_bucket", {"le": bound}) == count
    assert ours.count == 6
    assert ours.total == pytest.approx(sum(values))  # whose last bit depends on the Python
