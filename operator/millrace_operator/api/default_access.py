"""What the platform says of who may use services: the chart's `gateway.access` and its neighbours. Pure."""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import NamedTuple

from pydantic import ValidationError

from millrace_operator.api.access_types import Access, Authentication
from millrace_operator.api.types import Spec
from millrace_runtime import contract


class SecretRef(NamedTuple):
    """Names a Secret with clients' keys."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, kw_only=True)
class DefaultAccess:
    """Parsed once from the command line."""

    access: Access = field(default_factory=Access)
    """What holds for the parts that a service leaves out."""

    namespace: str = contract.DEFAULT_NAMESPACE
    """The gateway's own, which has the platform's Secret."""

    secret_namespaces: AbstractSet[str] = frozenset()
    """Other namespaces whose Secrets the gateway may read."""

    def complete(self, spec: Spec) -> Spec:
        """Return the spec with the platform's mode, if it says nothing of authentication.

        It then names no Secret, which means the platform's.
        """
        default = self.access.authentication
        if default is None or spec.access.authentication is not None:
            return spec
        authentication = Authentication(mode=default.mode)
        access = spec.access.model_copy(update={"authentication": authentication})
        return spec.model_copy(update={"access": access})

    def find_secret(self, namespace: str, access: Access) -> SecretRef | None:
        """Return the Secret with the keys of a service of that namespace; None if nobody names one."""
        if access.secret_name is not None:
            return SecretRef(namespace, access.secret_name)
        return None if self.secret_name is None else SecretRef(self.namespace, self.secret_name)

    @property
    def secret_name(self) -> str | None:
        """The platform's Secret; None if it has none. It is read with mode APIKey alone."""
        return self.access.secret_name if self.access.needs_keys else None

    def can_read(self, namespace: str) -> bool:
        """Whether the gateway may read the Secrets of a namespace."""
        return namespace == self.namespace or namespace in self.secret_namespaces


def parse_default_access(text: str) -> Access:
    """Return the parts in a JSON object of the form of `spec.access`. Raises ValueError."""
    try:
        return Access.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(map(str, first["loc"])) or "the text"
        raise ValueError(
            f"{place}: {first['msg']}; write JSON of the form of spec.access, such as "
            '{"authentication": {"mode": "APIKey", "secretName": "clients"}}'
        ) from error
