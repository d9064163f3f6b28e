"""The mark of simulated hours: they run again where a file changes that they import, directly or not."""

import pytest

READS_AUTOSCALER = pytest.mark.reads("tests/operator/autoscaler")
