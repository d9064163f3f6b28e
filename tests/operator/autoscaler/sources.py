"""The folders on which simulated hours depend: a change there runs them again."""

import pytest

READS_AUTOSCALER = pytest.mark.reads(
    "operator/millrace_operator",
    "runtime/millrace_gateway",
    "runtime/millrace_runtime",
    "tests/operator/autoscaler",
)
