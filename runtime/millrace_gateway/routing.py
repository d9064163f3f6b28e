"""Which service a request means: its Host, else the `model` in its body. Pure."""

import json
from typing import Any, NamedTuple

from millrace_gateway.address import HostAddress, parse_host
from millrace_gateway.catalogue import Catalogue, Route
from millrace_gateway.errors import BadRequestError, ModelNotFoundError

_HOW_TO_NAME = 'Write "<namespace>/<name>" in "model", or call http://<name>.<namespace>.svc instead.'


class Addressed(NamedTuple):
    """A request whose service is known."""

    route: Route
    body: bytes
    """The body to send: as received, or with the model's name as the replicas know it."""


def route_host(
    catalogue: Catalogue, host: str, cluster_domain: str, own_namespace: str | None
) -> Route | None:
    """Return the route that a Host decides, or None where the model has to decide.

    Raises ModelNotFoundError where the Host names a service that is not there. The model is not asked then:
    clients of a deleted service may still find its DNS entry, and must not reach another service by it.
    Only in the gateway's own namespace is it asked: there the Host may be the gateway's own Service.
    """
    address = parse_host(host, cluster_domain)
    if address is None:
        return None
    route = catalogue.find(address.key)
    if route is None and _is_of_a_service(catalogue, address, own_namespace):
        raise ModelNotFoundError(f"There is no InferenceService {address.key} for the host {host!r}.")
    return route


def route_model(catalogue: Catalogue, body: bytes) -> Addressed:
    """Read `model` from a JSON body and find its route. Raises BadRequestError or ModelNotFoundError.

    Replicas know only their served name. A body with `<namespace>/<name>` is written again with the served
    name; any other stays as it is.
    """
    document = _parse_body(body)
    model = document["model"]
    route = catalogue.find_model(model)
    if route is None:
        raise ModelNotFoundError(describe_unknown(model))
    if model != route.served_name:
        body = json.dumps(document | {"model": route.served_name}, separators=(",", ":")).encode()
    return Addressed(route, body)


def describe_unknown(model: str) -> str:
    """Return the message for a client that asked for a model that is not there.

    It is the same for a name that several claim: who asks learns nothing of others' services.
    """
    shown = repr(_shorten(model))
    bare = " A name without a namespace counts only where services of one namespace alone claim it."
    return f"The model {shown} does not exist.{'' if '/' in model else bare} {_HOW_TO_NAME}"


def _is_of_a_service(catalogue: Catalogue, address: HostAddress, own_namespace: str | None) -> bool:
    if address.key.namespace == own_namespace:
        return False
    return address.is_qualified or catalogue.has_namespace(address.key.namespace)


def _parse_body(body: bytes) -> dict[str, Any]:
    try:
        document = json.loads(body) if body else None
    except (ValueError, RecursionError) as error:
        raise BadRequestError(f"The request body is not JSON: {error}.") from error
    if not isinstance(document, dict) or not isinstance(document.get("model"), str):
        raise BadRequestError(
            f'The request does not say which model it is for: send a JSON object with "model". {_HOW_TO_NAME}'
        )
    return document


def _shorten(text: str, limit: int = 200) -> str:
    return text if len(text) <= limit else f"{text[:limit]}…"
