"""The models that a client may see, in the format of OpenAI's API. Pure."""

from datetime import datetime
from typing import Any

from millrace_gateway.route.catalogue import Catalogue, Route
from millrace_gateway.route.routing import HostRule, find_model


class ModelList:
    """The answers at `/v1/models`."""

    def __init__(self, catalogue: Catalogue, *, shows_all: bool) -> None:
        """`shows_all`: whether clients may know all services and their namespaces."""
        self._catalogue = catalogue
        self._shows_all = shows_all

    def list_models(self, rule: HostRule) -> dict[str, Any]:
        """Return the model of the Host's service, else the public names.

        OpenAI's clients accept an empty list.
        """
        route = rule.route
        if route:
            data = [_describe_model(route.served_name, route, is_owned=True)]
        else:
            models = self._catalogue.list_models() if self._shows_all else self._catalogue.list_pinned()
            data = [_describe_model(name, route, is_owned=self._shows_all) for name, route in models.items()]
        return {"object": "list", "data": data}

    def find_model(self, name: str, rule: HostRule) -> dict[str, Any]:
        """Return one model by its name. Raises ModelNotFoundError."""
        route = find_model(self._catalogue, name, rule)
        is_owned = rule.route is not None or self._shows_all
        return _describe_model(name, route, is_owned=is_owned)


def _describe_model(name: str, route: Route, *, is_owned: bool) -> dict[str, Any]:
    """Return a model in the format of OpenAI's API. Its owner is its namespace, if the client may know it."""
    oldest = route.services[0]
    return {
        "id": name,
        "object": "model",
        "created": int(datetime.fromisoformat(oldest.created).timestamp()) if oldest.created else 0,
        "owned_by": oldest.key.namespace if is_owned else "millrace",
        "root": name,
        "parent": None,
    }
