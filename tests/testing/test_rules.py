"""Each rule finds what breaks it, and an exception that nothing needs any more is named, too."""

import pytest

from testing.rules import Breach, compare, find_breaches

STACKED = """
ROWS = [1, 2, 3, 4, 5]

@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("column", [1, 2, 3, 4, {last}])
def test_both(row, column): ...
"""


@pytest.mark.parametrize(
    ("rule", "file", "text"),
    [
        ("import", "tests/gateway/test_a.py", "from e2e.service import Service"),
        ("import", "e2e/test_a.py", "from tests.kubectl.screens import draw"),
        ("import", "benchmarks/models/sizes.py", "from tests.fit.screens import SCREENS"),
        ("import", "tests/fetch/test_a.py", "from tests.fetch.conftest import fetch"),
        ("import", "tests/fetch/test_a.py", "from tests.fetch.test_b import fetch"),
        ("sleep", "tests/fetch/test_a.py", "time.sleep(0.1)"),
        ("sleep", "e2e/test_a.py", "async def f():\n    await asyncio.sleep(3)"),
        ("cluster", "e2e/test_a.py", "local = LocalCluster(state, nodes=())"),
        ("product", "tests/fetch/test_a.py", STACKED.format(last="5")),
        ("examples", "tests/fetch/test_a.py", "@settings(max_examples=9)\ndef test_a(): ..."),
    ],
)
def test_what_breaks_a_rule_is_found(rule: str, file: str, text: str) -> None:
    assert [(found.rule, found.file) for found in find_breaches(file, text)] == [(rule, file)]


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("tests/cluster/test_a.py", "from e2e.cluster.build import get_programs"),
        ("tests/gateway/test_a.py", "from testing.polling import wait_until"),
        ("tests/fetch/test_a.py", "time.sleep(0.05)"),
        ("tests/fetch/test_a.py", "time.sleep(seconds)"),
        ("e2e/conftest.py", "local = LocalCluster(state)"),
        ("tests/fetch/test_a.py", STACKED.replace(", 4, {last}", "")),
    ],
)
def test_what_keeps_the_rules_is_none_of_it(file: str, text: str) -> None:
    assert list(find_breaches(file, text)) == []


def test_more_than_is_excepted_and_less_are_both_named() -> None:
    breaches = [Breach("sleep", "tests/a.py", line) for line in (3, 9)] + [Breach("import", "b.py", 1)]
    assert list(compare(breaches, {"sleep": {"tests/a.py": 2}, "import": {"b.py": 1}})) == []
    (more,) = compare(breaches, {"sleep": {"tests/a.py": 1}, "import": {"b.py": 1}})
    assert more.startswith("tests/a.py: sleep: lines [3, 9], of which 1 are excepted")
    (less,) = compare(breaches[:2], {"sleep": {"tests/a.py": 2}, "import": {"b.py": 1}})
    assert less == "b.py: import: only 0 left; write so under [import] in exceptions.toml"
