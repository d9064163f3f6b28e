"""Which web pages may read answers, and what a browser is told before."""

import pytest

from millrace_runtime.cors import CorsPolicy, parse_origin

PAGE = "https://chat.example.com"
ASKED = {"access-control-request-method": "POST", "access-control-request-headers": "authorization,x-a"}


def test_origins_are_read_as_browsers_write_them() -> None:
    for text in ("*", PAGE, "http://localhost:3000", "http://[::1]:80"):
        assert parse_origin(text.upper()) == text
    for text in ("chat.example.com", f"{PAGE}/", "https://", "null", "", "ftp://a", "https://*.example.com"):
        with pytest.raises(ValueError, match="write one as browsers do"):
            parse_origin(text)


def test_only_a_page_of_an_allowed_origin_is_told_that_it_may_read() -> None:
    policy = CorsPolicy([PAGE])
    assert policy.answer_headers(PAGE)["Access-Control-Allow-Origin"] == PAGE
    for origin in (None, "null", f"{PAGE}:444", "https://evil.example"):
        assert policy.answer_headers(origin) == {"Vary": "Origin"}  # else a cache may mix them up
        assert policy.preflight_headers("OPTIONS", ASKED | ({"origin": origin} if origin else {})) is None
    assert CorsPolicy(["*"]).answer_headers("null")["Access-Control-Allow-Origin"] == "*"


def test_a_preflight_is_answered_with_what_it_asks_for() -> None:
    policy, asked = CorsPolicy([PAGE]), ASKED | {"origin": PAGE}
    told = policy.preflight_headers("OPTIONS", asked) or {}
    assert told["Access-Control-Allow-Headers"] == "authorization,x-a"
    assert told["Access-Control-Allow-Methods"] == "GET, POST"
    assert told["Access-Control-Allow-Origin"] == PAGE
    assert policy.preflight_headers("POST", asked) is None
    assert policy.preflight_headers("OPTIONS", {"origin": PAGE}) is None
