"""What the contract says of the API's paths."""

from typing import Any

from fastapi import FastAPI

from millrace_runtime.api.app import _add_generation
from millrace_runtime.contract import PATHS_WORK


def test_a_post_asks_for_work_where_the_contract_says_so() -> None:
    app, replica = FastAPI(), Any
    before = {id(route) for route in app.routes}
    _add_generation(app, replica)  # type: ignore[arg-type]
    added = [route for route in app.routes if id(route) not in before]
    assert {(route.path, *route.methods) for route in added} == {(path, "POST") for path in PATHS_WORK}
