"""The collector rests while a process imports, and works afterwards."""

import gc

import pytest

from millrace_runtime.process import paused_collection

pytestmark = pytest.mark.usefixtures("thawed")


def test_nothing_is_collected_meanwhile_and_all_that_is_there_is_left_alone() -> None:
    with paused_collection():
        assert not gc.isenabled()
        made = [[]]
    assert gc.isenabled()
    assert gc.get_freeze_count() > 0
    assert all(each is not made for each in gc.get_objects())


def test_a_failing_import_leaves_the_collector_on() -> None:
    with pytest.raises(ImportError), paused_collection():
        raise ImportError("no such library")
    assert gc.isenabled()
