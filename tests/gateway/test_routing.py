import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace_gateway.catalogue import Catalogue
from millrace_gateway.errors import BadRequestError, ModelNotFoundError
from millrace_gateway.routing import MAX_NAMES_LISTED, route_host, route_model
from tests.gateway.conftest import make_service

DOMAIN = "cluster.local"


@pytest.fixture
def catalogue() -> Catalogue:
    found = Catalogue(lambda: 0.0)
    found.replace_services([make_service("team", "chat", served="llama"), make_service("team", "sql")])
    return found


@pytest.mark.parametrize(
    "host", ["chat.team", "chat.team:8080", "chat.team.svc", "chat.team.svc.cluster.local"]
)
def test_the_host_decides(catalogue: Catalogue, host: str) -> None:
    assert route_host(catalogue, host, DOMAIN, None).served_name == "llama"


@pytest.mark.parametrize("host", ["gate.sys.svc", "gate.sys", "api.example", "localhost:8080", "127.0.0.1"])
def test_a_host_of_no_service_leaves_it_to_the_model(catalogue: Catalogue, host: str) -> None:
    assert route_host(catalogue, host, DOMAIN, own_namespace="sys") is None


@pytest.mark.parametrize("host", ["gone.team", "gone.team.svc.cluster.local", "gone.empty.svc"])
def test_a_deleted_services_host_reaches_nobody_else(catalogue: Catalogue, host: str) -> None:
    with pytest.raises(ModelNotFoundError, match="no InferenceService"):
        route_host(catalogue, host, DOMAIN, own_namespace="sys")


def test_the_refusal_of_a_host_names_its_neighbours(catalogue: Catalogue) -> None:
    with pytest.raises(ModelNotFoundError, match="In namespace team there are: team/chat, team/sql"):
        route_host(catalogue, "gone.team", DOMAIN, None)


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


def test_an_unknown_model_is_told_what_there_is(catalogue: Catalogue) -> None:
    with pytest.raises(ModelNotFoundError) as short:
        route_model(catalogue, b'{"model": "gpt"}')
    assert "'gpt' does not exist. There are: llama, sql. Name one" in str(short.value)
    with pytest.raises(ModelNotFoundError) as full:
        route_model(catalogue, b'{"model": "team/gpt"}')
    assert "In namespace team there are: team/chat, team/sql." in str(full.value)
    with pytest.raises(ModelNotFoundError, match="There are no models"):
        route_model(Catalogue(lambda: 0.0), b'{"model": "gpt"}')


def test_the_list_and_the_name_are_bounded() -> None:
    catalogue = Catalogue(lambda: 0.0)
    catalogue.replace_services([make_service("a", f"m{i:03}") for i in range(50)])
    with pytest.raises(ModelNotFoundError) as refusal:
        route_model(catalogue, json.dumps({"model": "x" * 5000}).encode())
    assert f"and {50 - MAX_NAMES_LISTED} more" in str(refusal.value)
    assert len(str(refusal.value)) < 1000
