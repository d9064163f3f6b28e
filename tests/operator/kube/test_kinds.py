"""A kind's row says all that is needed to follow it."""

import pytest

from millrace_operator.controller.relister import find_selector
from millrace_operator.kube.kinds import BY_NAME, EVERYWHERE, KINDS, Kind, Role, find_scopes

FOLLOWED = [kind for kind in KINDS if kind.role is not Role.UNWATCHED]


def test_every_row_with_a_role_is_followed_and_no_other() -> None:
    assert {scope.kind for scope in EVERYWHERE} == set(FOLLOWED)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
def test_a_kind_is_found_by_its_name(kind: Kind) -> None:
    assert BY_NAME[kind.kind] is kind


def test_what_belongs_to_services_is_listed_by_label_and_in_their_namespaces_alone() -> None:
    for scope in find_scopes(["a", "b"]):
        assert (scope.namespace is None) == (scope.kind.role is Role.NODE)
        assert bool(find_selector(scope)) == (scope.kind.role in (Role.CHILD, Role.POD))
