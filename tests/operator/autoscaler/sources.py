"""What simulated hours are made of: they run again where one of these changed."""

import pytest

READS_AUTOSCALER = pytest.mark.reads(
    "operator/millrace_operator",
    "runtime/millrace_gateway",
    "runtime/millrace_runtime",
    "tests/operator/autoscaler",
)
