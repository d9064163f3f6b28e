"""Structured output at the API: which fields ask for it, what reaches the engine, and what is refused."""

import asyncio
import json
import re
from typing import Any

import httpx
import pytest

HI = [{"role": "user", "content": "hi"}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
FORMAT = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}
SET = {"type": "object", "properties": {"tags": {"type": "array", "items": {}, "uniqueItems": True}}}
NAMED = {"type": "json_schema", "json_schema": {"name": "x", "schema": SET}}
OPTIONS = {
    "disable_any_whitespace": False,
    "disable_additional_properties": False,
    "disable_fallback": False,
    "whitespace_pattern": None,
    "structural_tag": None,
    "_backend": "xgrammar",
    "_backend_was_auto": True,
}
"""As vLLM's own client sends them."""
ASKING = [
    ({"response_format": FORMAT}, '"required":["a"]'),
    ({"response_format": {"type": "json_object"}}, '{"type":"object"'),
    ({"response_format": {"type": "json_object", "schema": SCHEMA}}, '"required":["a"]'),
    ({"response_format": {"type": "json_object", "schema": {}}}, '{"type":"object"'),
    ({"guided_json": json.dumps(SCHEMA)}, '"required":["a"]'),
    ({"guided_regex": "a+"}, "/a+/"),
    ({"guided_choice": ["x", "ß"]}, '"x" | "ß"'),
    ({"structured_outputs": {"grammar": 'root ::= "r"', "json": None}}, 'start: "r"'),
    ({"structured_outputs": {"json_object": True}}, '{"type":"object"'),
    ({"structured_outputs": {"json": SCHEMA, **OPTIONS}}, '"required":["a"]'),
    ({"guided_json": SCHEMA, "guided_decoding_backend": None, "guided_whitespace_pattern": None}, '"a"'),
    ({"response_format": NAMED}, '"tags"'),
]
IMPOSSIBLE = {"type": "integer", "minimum": 5, "maximum": 3}
REFUSED = [
    ({"response_format": FORMAT, "guided_json": SCHEMA}, "guided_json", "exclude each other"),
    (
        {"structured_outputs": {"json": SCHEMA, "regex": "a"}},
        "structured_outputs.regex",
        "exclude each other",
    ),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "needs a `json_schema`"),
    ({"response_format": {"type": "structural_tag"}}, "response_format.type", "Invalid enum value"),
    ({"response_format": {"type": "text", "schema": {}}}, "response_format.schema", "`json_object`"),
    ({"structured_outputs": {}}, "structured_outputs", "needs one of"),
    ({"structured_outputs": {"json": IMPOSSIBLE}}, "structured_outputs.json", "greater than maximum"),
    ({"guided_json": IMPOSSIBLE}, "guided_json", "`#/minimum`: Unsatisfiable schema: minimum (5) is greater"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": SET, "strict": True}}},
        "response_format",
        "`#/properties/tags/uniqueItems` can't be kept",
    ),
    ({"guided_json": {"items": {"not": {"type": "null"}}}}, "guided_json", "`#/items/not`"),
    *(
        (
            {"structured_outputs": {"regex": "a", name: value}},
            f"structured_outputs.{name}",
            "is not supported",
        )
        for name, value in [
            ("disable_any_whitespace", True),
            ("disable_additional_properties", True),
            ("whitespace_pattern", " "),
            ("structural_tag", "{}"),
        ]
    ),
    ({"guided_regex": "(" * 5000 + ")" * 5000}, "guided_regex", "invalid regex"),
    ({"guided_regex": "x" * 200_000}, "guided_regex", "shorten it"),
    ({"guided_choice": []}, "guided_choice", "length >= 1"),
    ({"guided_grammar": "start: nothing"}, "guided_grammar", "unknown name"),
]


@pytest.mark.parametrize("path", ["completions", "chat/completions"])
async def test_a_proven_grammar_reaches_the_engine(served: "Served", path: str) -> None:  # noqa: F821  conftest's
    body = {"prompt": [5, 6]} if path == "completions" else {"messages": HI}
    for fields, text in ASKING:
        answer = await served.client.post(f"/v1/{path}", json=body | fields)
        assert answer.status_code == 200, answer.text
        grammar = served.engine.seen[-1].grammar
        assert grammar is not None
        letters = json.dumps(json.loads(grammar.text), ensure_ascii=False)
        assert text in letters.replace('\\"', '"').replace('": ', '":'), grammar
    await served.client.post(f"/v1/{path}", json=body | {"response_format": {"type": "text"}})
    assert served.engine.seen[-1].grammar is None


async def test_a_large_body_has_its_grammar_too(served: "Served") -> None:  # noqa: F821  conftest's
    body: dict[str, Any] = {"prompt": [5] * 3, "user": "x" * 200_000, "guided_regex": "a+"}
    answer = await served.client.post("/v1/completions", json=body)
    assert (answer.status_code, "/a+/" in str(served.engine.seen[-1].grammar)) == (200, True)
    answer = await served.client.post("/v1/completions", json=body | {"guided_regex": "("})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "guided_regex")


async def test_a_grammar_that_cannot_be_used_is_refused_by_its_field_and_the_next_is_served(
    served: "Served",  # noqa: F821  conftest's
) -> None:
    for fields, param, message in REFUSED:
        answer = await served.client.post("/v1/chat/completions", json={"messages": HI} | fields)
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (400, param), error
        assert message in error["message"]
        assert len(error["message"]) < 800
        good = await served.client.post("/v1/chat/completions", json={"messages": HI, "guided_regex": "a+"})
        assert good.status_code == 200
    assert len(served.engine.seen) == len(REFUSED)


LONG = [{"type": "integer", "multipleOf": prime} for prime in (199_999, 299_993, 399_989)]
"""Each takes seconds to compile."""


async def test_a_grammar_that_takes_long_delays_nobody_and_is_refused(served: "Served") -> None:  # noqa: F821  conftest's
    def ask(**fields: Any) -> "asyncio.Task[httpx.Response]":
        body = {"messages": HI} | fields
        return asyncio.create_task(served.client.post("/v1/chat/completions", json=body))

    long = [ask(guided_json=schema) for schema in LONG]
    await asyncio.wait(long, timeout=0.01)
    others = [ask(), ask(guided_regex="a+"), ask(guided_json=SCHEMA)]
    assert [answer.status_code for answer in await asyncio.gather(*others)] == [200] * 3
    assert not any(task.done() for task in long)
    for answer in await asyncio.gather(*long):
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "guided_json")
        # On a fast CPU one has taken its 64 MiB before its 0.5 s.
        assert re.search(
            "more than (0.5 s to compile|67108864 bytes of memory, .*): make it smaller",
            answer.json()["error"]["message"],
        )
