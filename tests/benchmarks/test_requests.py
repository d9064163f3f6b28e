"""The schemas of the benchmark of requests, and what it measures of them."""

import json
import time

import pytest

from benchmarks.requests.grammar_costs import compile_schema, compute_percentile, measure_round, time_held
from benchmarks.requests.row_costs import CASES
from benchmarks.requests.schemas import draw_long_schemas, draw_schemas
from benchmarks.runtime.client import WithFields
from millrace_runtime.chat.tokenizer import Tokenizer
from millrace_runtime.grammar.matcher import Vocabulary
from millrace_runtime.replica.settings import DEMO_PATH


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return Vocabulary(Tokenizer.load(DEMO_PATH))


def test_the_schemas_are_those_of_their_seed_and_have_all_that_public_ones_have() -> None:
    drawn = draw_schemas(100)
    assert drawn[:50] == draw_schemas(50)
    assert drawn != draw_schemas(100, seed=2)
    text = json.dumps(drawn)
    for key in ("$ref", "$defs", "enum", "pattern", "format", "anyOf", "items", "maximum", "const"):
        assert f'"{key}"' in text, key


def test_every_schema_compiles(vocabulary: Vocabulary) -> None:
    costs = measure_round(vocabulary, [json.dumps(schema) for schema in draw_schemas(20)], 0)
    assert 0 < costs.compile_p50 <= costs.compile_p99
    assert costs.mask_p99 > 0
    for schema in draw_long_schemas(2):
        assert compile_schema(vocabulary, json.dumps(schema))


def test_a_call_holds_the_lock_unless_another_thread_runs_meanwhile() -> None:
    # On a busy machine the other thread may wait for its turn longer than a call lasts.
    assert any(time_held(lambda: time.sleep(0.001)) == 0 for _ in range(100))
    assert time_held(lambda: sum(range(100_000))) > 0


def test_the_rows_take_the_fields_in_turn() -> None:
    dialect = WithFields("m", [{"seed": 1}, {"seed": 2}])
    assert [dialect.body([1], 4)["seed"] for _ in range(3)] == [1, 2, 1]
    case, fields = CASES["json_schema_over_free"]
    assert len({json.dumps(field) for field in fields}) == case.num_requests == 16


def test_a_percentile_is_one_of_the_values() -> None:
    assert compute_percentile([3, 1, 2], 0.99) == 3
    assert compute_percentile(range(100), 0.5) == 50
