import json
import tracemalloc
from contextlib import nullcontext

import pytest

from millrace_gateway.errors import BadRequestError, ModelNotFoundError, RequestRefusedError
from millrace_gateway.route.catalogue import Catalogue
from millrace_gateway.route.objects import ServiceKey
from millrace_gateway.route.routing import HostPolicy, address, find_model, route_host
from tests.gateway.conftest import make_pod, make_service

POLICY = HostPolicy("cluster.local", "sys", frozenset({"models.team"}))


@pytest.fixture
def catalogue() -> Catalogue:
    found = Catalogue(lambda: 0.0)
    found.replace_services([make_service("team", "chat", served="llama"), make_service("team", "sql")])
    return found


@pytest.mark.parametrize("host", ["chat.team.svc", "Chat.team.svc:8080", "chat.team.svc.cluster.local."])
def test_the_host_decides(catalogue: Catalogue, host: str) -> None:
    rule = route_host(catalogue, host, POLICY)
    assert rule.route is not None
    assert rule.route.served_name == "llama"


@pytest.mark.parametrize(
    "host",
    [
        "gate.sys.svc",
        "gate.sys",
        "api.example",
        "localhost:8080",
        "127.0.0.1",
        "models.team",
        "MODELS.team.:8",
    ],
)
def test_a_host_of_no_service_leaves_it_to_the_model(catalogue: Catalogue, host: str) -> None:
    catalogue.apply_service(make_service("sys", "other"))
    assert route_host(catalogue, host, POLICY)[:2] == (None, None)


@pytest.mark.parametrize("host", ["gone.team.svc", "gone.team.svc.cluster.local", "gone.empty.svc"])
@pytest.mark.parametrize("are_short", [False, True])
def test_a_deleted_services_host_reaches_nobody_else(
    catalogue: Catalogue, host: str, *, are_short: bool
) -> None:
    with pytest.raises(ModelNotFoundError, match="no InferenceService") as refusal:
        route_host(catalogue, host, POLICY._replace(are_short=are_short))
    assert "sql" not in str(refusal.value)  # a neighbour


def test_long_hosts_take_little_memory(catalogue: Catalogue) -> None:
    tracemalloc.start()
    for number in range(1000):
        rule = route_host(catalogue, f"chat.team.svc:{number}" + "9" * 20_000, POLICY)
        assert rule.route is catalogue.find(ServiceKey("team", "chat"))
    num_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert num_bytes < 4 << 20


def test_two_labels_name_a_service_where_the_platform_says_so(catalogue: Catalogue) -> None:
    policy = POLICY._replace(are_short=True)
    rule = route_host(catalogue, "chat.team:8080", policy)
    assert rule.route == catalogue.find(ServiceKey("team", "chat"))
    assert route_host(catalogue, "models.team", policy)[:2] == (None, None)
    assert route_host(catalogue, "api.example", policy)[:2] == (None, None)
    with pytest.raises(ModelNotFoundError):
        route_host(catalogue, "gone.team", policy)


@pytest.mark.parametrize(
    ("host", "model", "reached"),
    [
        ("chat.team", "llama", "llama"),
        ("models.dev", "llama", None),  # dev has services: a short name must be of it
        ("models.dev", "team/chat", "llama"),
        ("models.dev", "prod", None),  # pinned to another namespace: dev can't take it by its own `prod`
        ("models.dev", "sql", None),
        ("gone.dev", "tiny", "tiny"),
        ("api.example", "prod", "llama"),
    ],
)
def test_two_labels_keep_a_short_name_within_their_namespace(
    host: str, model: str, reached: str | None
) -> None:
    catalogue = Catalogue(lambda: 0.0, {"prod": ServiceKey("team", "chat")})
    services = (
        ("team", "chat", "llama"),
        ("dev", "tiny", None),
        ("dev", "x", "prod"),
        ("other", "sql", None),
    )
    catalogue.replace_services([make_service(*key, served=served) for *key, served in services])
    rule, body = route_host(catalogue, host, POLICY), json.dumps({"model": model}).encode()
    if reached:
        assert rule.route is None
        assert address(catalogue, body, rule).route.served_name == reached
        return
    with pytest.raises(ModelNotFoundError, match=r"http://<name>\.<namespace>\.svc ") as refusal:
        address(catalogue, body, rule)
    with pytest.raises(ModelNotFoundError) as unknown:
        address(catalogue, b'{"model": "nobodys"}', rule)
    assert str(unknown.value).replace("nobodys", model) == str(refusal.value)


@pytest.mark.parametrize(
    ("host", "model", "is_reached"),
    [
        ("chat", "llama", True),
        ("Chat.:8080", "llama", True),
        ("sql", "llama", False),  # meant as a service `sql` of some namespace
        ("sql:8080", "team/chat", True),
        ("nobody", "llama", True),
        ("localhost:8080", "llama", True),
        ("public", "llama", True),
    ],
)
def test_one_label_keeps_a_short_name_to_services_of_that_name(
    catalogue: Catalogue, host: str, model: str, *, is_reached: bool
) -> None:
    for name in ("localhost", "public"):
        catalogue.apply_service(make_service("ai", name))
    rule = route_host(catalogue, host, POLICY._replace(public_hosts=frozenset({"public"})))
    with nullcontext() if is_reached else pytest.raises(ModelNotFoundError, match="inside the namespace"):
        find_model(catalogue, model, rule)


@pytest.mark.parametrize(
    ("host", "port"), [("api.example:8080", ":8080"), ("[::1]", ""), ("models.team", "")]
)
def test_a_refusal_gives_an_address_at_the_port_that_was_called(
    catalogue: Catalogue, host: str, port: str
) -> None:
    rule = route_host(catalogue, host, POLICY)
    for body in (b"{}", b'{"model": "none"}'):
        with pytest.raises(RequestRefusedError, match=f"http://<name>.<namespace>.svc{port} instead"):
            address(catalogue, body, rule)


@pytest.mark.parametrize("host", ["chat.team.svc", "api.example"])
@pytest.mark.parametrize("model", ["llama", "old", "team/chat", "prod"])
def test_each_name_of_a_service_is_known_by_any_host(host: str, model: str) -> None:
    """By that of its spec, those that replicas run with, its full name and the platform's."""
    catalogue = Catalogue(lambda: 0.0, {"prod": ServiceKey("team", "chat")})
    catalogue.replace_services([make_service("team", "chat", served="llama"), make_service("other", "x")])
    catalogue.apply_replica(make_pod("team", "chat", "p", served="old"))
    rule = route_host(catalogue, host, POLICY)
    found = address(catalogue, json.dumps({"model": model}).encode(), rule)
    assert (found.route.services[0].key, found.model) == (("team", "chat"), model)
    assert find_model(catalogue, model, rule) == found.route


@pytest.mark.parametrize("body", [b"", b"no json", b"[]", b"{}", b'{"model": 3}', b'{"model": "other/x"}'])
def test_at_a_services_address_any_other_body_goes_as_it_came(catalogue: Catalogue, body: bytes) -> None:
    catalogue.apply_service(make_service("other", "x"))
    rule = route_host(catalogue, "chat.team.svc", POLICY)
    assert address(catalogue, body, rule)[:2] == (rule.route, None)


PAD = b'"%b"' % (b"." * 300_000)


@pytest.mark.parametrize(
    ("body", "is_stream", "num_sequences"),
    [
        (b'{"n":128,"max_tokens":4000,"stream":true}', True, 128),
        (b'{"model":null,"n":128,"max_tokens":4000,"stream":true}', True, 128),
        (b'{"n":2,"max_tokens":4000,"pad":%b,"stream":true}' % PAD, True, 2),
        (b'{"stream":true,"pad":%b,"n":2,"max_tokens":4000,"more":%b}' % (PAD, PAD), True, 2),
        (b'{"stream":true,"n":2,"pad":%b,"cut":"\\ud800"}' % PAD, False, 128),  # the replica mends it
        (b"compressed", False, 128),
    ],
    ids=range(6),
)
def test_at_a_services_address_no_body_hides_its_sequences(
    catalogue: Catalogue, body: bytes, num_sequences: int, *, is_stream: bool
) -> None:
    """One turn bought 128 places at the replicas."""
    fields = address(catalogue, body, route_host(catalogue, "chat.team.svc", POLICY)).fields
    assert (fields.is_stream, fields.num_sequences) == (is_stream, num_sequences)
    assert fields.most_tokens == (4000 if b"max_tokens" in body else None)


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b"{}", b'{"model": null}', b'{"model": 3}', b"\xff\xfe", b"[" * 100_000],
    ids=range(9),
)
def test_a_body_without_a_model_is_told_how_to_name_one(catalogue: Catalogue, body: bytes) -> None:
    with pytest.raises(BadRequestError, match=r"is not JSON|<namespace>/<name>"):
        address(catalogue, body)


def test_an_unknown_model_is_told_how_to_name_one_and_of_no_service(catalogue: Catalogue) -> None:
    texts = {}
    catalogue.apply_service(make_service("other", "sql"))
    for model in ("gpt", "sql", "team/gpt", "x" * 5000):
        with pytest.raises(ModelNotFoundError) as refusal:
            address(catalogue, json.dumps({"model": model}).encode())
        texts[model] = str(refusal.value)
        assert "<namespace>/<name>" in texts[model]
        assert "http://<name>.<namespace>.svc" in texts[model]
        assert len(texts[model]) < 1000
    assert "or services of several namespaces claim the name" in texts["gpt"]
    assert texts["gpt"] == texts["sql"].replace("sql", "gpt")  # also where several claim it
    assert not any(name in text for text in texts.values() for name in ("chat", "llama", "other"))
