import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace_gateway.catalogue import Catalogue
from millrace_gateway.errors import BadRequestError, ModelNotFoundError
from millrace_gateway.objects import ServiceKey
from millrace_gateway.routing import HostPolicy, route_host, route_model
from tests.gateway.conftest import make_service

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
        assert route_model(catalogue, body, rule).route.served_name == reached
        return
    with pytest.raises(ModelNotFoundError, match=r"http://\w+\.dev\.svc") as refusal:
        route_model(catalogue, body, rule)
    with pytest.raises(ModelNotFoundError) as unknown:
        route_model(catalogue, b'{"model": "nobodys"}', rule)
    assert str(unknown.value).replace("nobodys", model) == str(refusal.value)


def test_a_served_name_sends_the_body_as_it_came(catalogue: Catalogue) -> None:
    body = b'{ "messages": [],\n "model": "llama" }'
    assert route_model(catalogue, body).body is body


@given(
    st.dictionaries(
        st.text(), st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
    )
)
def test_a_full_name_becomes_the_served_one_and_nothing_else_changes(fields: dict[str, object]) -> None:
    catalogue = Catalogue(lambda: 0.0)
    catalogue.replace_services([make_service("team", "chat", served="llama")])
    sent = route_model(catalogue, json.dumps(fields | {"model": "team/chat"}).encode()).body
    assert json.loads(sent) == fields | {"model": "llama"}


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b"{}", b'{"model": null}', b'{"model": 3}', b"\xff\xfe", b"[" * 100_000],
    ids=range(9),
)
def test_a_body_without_a_model_is_told_how_to_name_one(catalogue: Catalogue, body: bytes) -> None:
    with pytest.raises(BadRequestError, match=r"is not JSON|<namespace>/<name>"):
        route_model(catalogue, body)


def test_an_unknown_model_is_told_how_to_name_one_and_of_no_service(catalogue: Catalogue) -> None:
    texts = {}
    catalogue.apply_service(make_service("other", "sql"))
    for model in ("gpt", "sql", "team/gpt", "x" * 5000):
        with pytest.raises(ModelNotFoundError) as refusal:
            route_model(catalogue, json.dumps({"model": model}).encode())
        texts[model] = str(refusal.value)
        assert "<namespace>/<name>" in texts[model]
        assert "http://<name>.<namespace>.svc" in texts[model]
        assert len(texts[model]) < 1000
    assert "or services of several namespaces claim the name" in texts["gpt"]
    assert texts["gpt"] == texts["sql"].replace("sql", "gpt")  # also where several claim it
    assert not any(name in text for text in texts.values() for name in ("chat", "llama", "other"))
