"""The page on simulations shows what its command prints."""

from pathlib import Path

import pytest

from tests.kubectl.page import PAGE, TRACE, TRACES, read_table, simulate


@pytest.mark.slow
@pytest.mark.skipif(
    not (TRACES / TRACE).exists(),
    reason=f"there is no {TRACE} in {TRACES}: MILLRACE_TRACES names the folder",
)
def test_the_pages_table_is_what_its_command_prints(tmp_path: Path) -> None:
    page = PAGE.read_text()
    assert simulate(page, tmp_path) == read_table(page), "if that is wanted: python -m tests.kubectl.page"
