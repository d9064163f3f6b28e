"""`simulate --from-prometheus`: requests drawn from rates that a Prometheus recorded."""

import argparse
import json
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from millrace_kubectl.subcommands.simulate import add_arguments
from millrace_operator.app.command import build_parser as build_operators_parser
from millrace_operator.autoscaler.signals.queries import LABEL_SIGNAL
from tests.kubectl.conftest import Terminal
from tests.kubectl.simulation import Desk

Values = Callable[[float], float | None]


class StandIn:
    """A Prometheus' range API: values at each step, of a service and of its neighbour in the namespace."""

    def __init__(self) -> None:
        self.signals: dict[str, Values] = {
            "arrivals": lambda share: 1.0 if share < 0.5 else 3.0,
            "prompt_tokens": lambda _: 400.0,
            "generation_tokens": lambda _: 150.0,
        }
        self.fields: dict[str, str] = {}
        self.refusal: tuple[int, bytes] | None = None
        self.headers: dict[str, str] = {}
        self.location: str | None = None
        self.beside: dict[str, Any] = {}

    def answer(self, fields: dict[str, str]) -> tuple[int, bytes]:
        self.fields = fields
        if self.refusal is not None:
            return self.refusal
        begin, end, step = (float(fields[name]) for name in ("start", "end", "step"))
        times = [begin + i * step for i in range(int((end - begin) / step) + 1)]
        result = [
            self._series("chat", signal, values, times, end) for signal, values in self.signals.items()
        ] + [self._series("chatty", "arrivals", lambda _: 500.0, times, end)]
        body = {"status": "success", "data": {"resultType": "matrix", "result": result}, **self.beside}
        return 200, json.dumps(body).encode()

    @staticmethod
    def _series(service: str, signal: str, values: Values, times: list[float], end: float) -> dict[str, Any]:
        span = max(end - times[0], 1.0)
        known = [(at, value) for at in times if (value := values((at - times[0]) / span)) is not None]
        labels = {"namespace": "shop", "service": service, LABEL_SIGNAL: signal}
        return {"metric": labels, "values": [[at, str(value)] for at, value in known]}


class Shop(Desk):
    """A desk with a Prometheus."""

    def __init__(self, terminal: Terminal, folder: Path, stand_in: StandIn, url: str) -> None:
        super().__init__(terminal, folder)
        self.prometheus, self.url = stand_in, url

    def replay(self, *words: str) -> dict[str, Any]:
        usual = ("--from-prometheus", self.url, "--policy", "static:3", "-o", "json", "--initial", "3")
        answer = self.simulate(*usual, *words, without=("--trace",))
        assert answer.status == 0, answer.error
        found: dict[str, Any] = json.loads(answer.out)
        *found["notes"], of_the_replica = found["notes"]
        assert of_the_replica.startswith("assumed of a replica: ")
        return found

    def fail(self, *words: str) -> str:
        answer = self.simulate("--from-prometheus", self.url, *words, without=("--trace",))
        assert (answer.status, answer.out) == (1, "")
        return answer.error


@pytest.fixture
def shop(terminal: Terminal, tmp_path: Path) -> Iterator[Shop]:
    stand_in = StandIn()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            length = int(self.headers["Content-Length"])
            fields = dict(urllib.parse.parse_qsl(self.rfile.read(length).decode()))
            assert self.path == "/prefix/api/v1/query_range"
            stand_in.headers = dict(self.headers)
            status, body = stand_in.answer(fields)
            self.send_response(302 if stand_in.location else status)
            if stand_in.location:
                self.send_header("Location", stand_in.location)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield Shop(terminal, tmp_path, stand_in, f"http://127.0.0.1:{server.server_port}/prefix/")
    server.shutdown()
    thread.join()
    server.server_close()


def test_requests_have_the_rates_of_this_service_and_the_output_says_what_is_drawn(shop: Shop) -> None:
    found = shop.replay("--since", "30m")
    assert found["load"]["seconds"] == 1800
    assert found["load"]["requests"] == pytest.approx(1800 * 2, rel=0.06)
    assert found["notes"] == [
        "rates and mean lengths are recorded, each of 60s; bursts and lengths within are drawn"
    ]
    assert float(shop.prometheus.fields["step"]) == 60
    assert 'namespace=~"shop"' in shop.prometheus.fields["query"]


def test_the_text_has_the_mean_lengths_that_were_recorded(shop: Shop) -> None:
    words = ("--from-prometheus", shop.url, "--since", "1h", "--policy", "static:3", "--initial", "3")
    line = shop.simulate(*words, without=("--trace",)).out.splitlines()[0]
    prompt, answer = (float(line.split(word)[1].split()[0]) for word in ("prompts of ", "answers of "))
    assert prompt == pytest.approx(400, rel=0.08)
    assert answer == pytest.approx(150, rel=0.08)


def test_the_rate_is_the_larger_of_gateway_and_replicas_less_what_was_refused(shop: Shop) -> None:
    shop.prometheus.signals |= {"received": lambda _: 6.0, "refused": lambda _: 1.0}
    assert shop.replay("--since", "30m")["load"]["requests"] == pytest.approx(1800 * 5, rel=0.06)


def test_slow_scrapes_make_longer_steps(shop: Shop) -> None:
    shop.replay("--since", "1h", "--scrape", "30s")
    assert float(shop.prometheus.fields["step"]) == 120


def test_what_is_not_known_is_never_taken_for_no_load(shop: Shop) -> None:
    shop.prometheus.signals["arrivals"] = lambda share: None if 0.3 < share < 0.7 else 2.0
    found = shop.replay("--since", "1h")
    assert found["load"]["requests"] == pytest.approx(3600 * 2, rel=0.06)
    assert "steps of 60s have no samples: each is a copy of the one before" in found["notes"][1]


def test_a_service_that_is_younger_begins_with_its_first_sample(shop: Shop) -> None:
    shop.prometheus.signals["arrivals"] = lambda share: None if share < 0.5 else 2.0
    found = shop.replay("--since", "1h")
    assert found["load"]["seconds"] == pytest.approx(1800, abs=60)
    assert len(found["notes"]) == 1


@pytest.mark.parametrize(
    ("refusal", "says"),
    [
        ((400, b'{"status": "error", "error": "too many points"}'), "refused the query: too many points"),
        ((502, b"<html>"), "is no Prometheus: status 502 and no JSON"),
        ((200, b'{"status": "success", "data": {"result": [{}]}}'), "answered in an unknown shape"),
        (
            (200, b'{"status": "success", "data": {"result": []}}'),
            "knows no requests of shop/chat in the last 6h",
        ),
    ],
)
def test_answers_that_cannot_be_used_are_errors(shop: Shop, refusal: tuple[int, bytes], says: str) -> None:
    shop.prometheus.refusal = refusal
    assert says in shop.fail()


def test_load_without_lengths_is_refused(shop: Shop) -> None:
    del shop.prometheus.signals["generation_tokens"]
    assert "no lengths of requests: none finished" in shop.fail()


def test_lengths_that_are_cut_are_noted_with_their_share(shop: Shop) -> None:
    """Half of a KV cache of 20,000 tokens is the longest prompt that is drawn."""
    shop.prometheus.signals["prompt_tokens"] = lambda _: 12_000.0
    (_, note) = shop.replay("--since", "30m")["notes"]
    share = float(note.split(" % ")[0])
    assert 10 < share < 70
    assert note.endswith(
        "of the requests were drawn longer than 10000 tokens, half of the KV cache, and are cut"
    )


def test_one_that_does_not_answer_is_named(shop: Shop) -> None:
    shop.url = "http://127.0.0.1:9"
    assert "Prometheus at http://127.0.0.1:9 did not answer: " in shop.fail()


def test_it_is_asked_as_the_operator_asks(shop: Shop) -> None:
    token = shop.folder / "token"
    token.write_text("secret\n")
    words = ("--prometheus-token-file", str(token), "--prometheus-tenant", "team-a")
    shop.replay("--since", "30m", *words, "--prometheus-matchers", 'cluster="eu"')
    assert shop.prometheus.headers["Authorization"] == "Bearer secret"
    assert shop.prometheus.headers["X-Scope-Orgid"] == "team-a"
    assert 'cluster="eu"' in shop.prometheus.fields["query"]


@pytest.mark.parametrize(
    ("beside", "message"),
    [
        ({"isPartial": True}, "from a part of its stores only; ask again"),
        ({"warnings": ["store eu is gone"]}, "may not have answered from all its stores: store eu is gone"),
    ],
)
def test_an_answer_from_a_part_of_the_stores_is_refused(
    shop: Shop, beside: dict[str, Any], message: str
) -> None:
    shop.prometheus.beside = beside
    assert message in shop.fail()


@pytest.mark.parametrize(("status", "message"), [(401, "it needs credentials"), (403, "may not read it")])
def test_without_credentials_it_says_which_flag_has_them(shop: Shop, status: int, message: str) -> None:
    shop.prometheus.refusal = (status, b"Forbidden")
    error = shop.fail()
    assert message in error
    assert "--prometheus-token-file" in error


def test_credentials_go_to_no_other_address(shop: Shop) -> None:
    shop.prometheus.location = "http://127.0.0.2:9/"
    assert "redirects: write http://127.0.0.2:9/" in shop.fail()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--prometheus-username-file", "a"), "--prometheus-password-file"),
        (("--prometheus-insecure",), "--from-prometheus begins with http://"),
        (("--prometheus-token-file", "absent"), "no credentials for Prometheus in absent"),
    ],
)
def test_flags_that_contradict_each_other_are_refused(
    shop: Shop, words: tuple[str, ...], message: str
) -> None:
    answer = shop.simulate("--from-prometheus", shop.url, *words, without=("--trace",))
    assert answer.status == 2
    assert message in answer.error


def test_of_a_trace_nobody_is_asked(shop: Shop) -> None:
    answer = shop.simulate("--prometheus-tenant", "team-a")
    assert (answer.status, "--prometheus-tenant is of --from-prometheus" in answer.error) == (2, True)


def test_the_flags_are_those_of_the_operator() -> None:
    def list_flags(parser: argparse.ArgumentParser) -> set[str]:
        flags = {flag for action in parser._actions for flag in action.option_strings}
        return {flag for flag in flags if flag.startswith("--prometheus-")}

    parser = argparse.ArgumentParser()
    add_arguments(parser)
    assert list_flags(parser) == list_flags(build_operators_parser()) - {"--prometheus-url"}
