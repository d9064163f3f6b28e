"""Each family against transformers, on small models that transformers itself writes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from millrace_kernels.device_kernels import select_triton
from millrace_runtime.execution import model_runner
from millrace_runtime.execution.build import build_executor
from millrace_runtime.execution.settings import ExecutionSettings
from tests.runtime.execution.families import FAMILIES
from tests.runtime.execution.greedy import check_greedy, check_preempted, prompt
from tests.runtime.execution.random_models import find_class, write_random


@pytest.mark.parametrize("name", FAMILIES)
def test_greedy_agrees_with_transformers(tmp_path: Path, make_driver: Callable[..., Any], name: str) -> None:
    path = write_random(tmp_path / "model", FAMILIES[name])
    check_greedy(path, prompt(277, 0), make_driver, find_class(FAMILIES[name]))


BFLOAT16 = 0.15
"""The most by which a log-probability may differ from float32's, for each family as for Llama."""
CONDITIONS: dict[str, dict[str, Any]] = {
    "native": {},
    "torch": {"kernels": "torch"},
    "Triton's interpreter": {"kernels": "torch"},
    "bfloat16": {"dtype": "bfloat16"},
    "two workers": {"workers": 2},
    "two workers with torch": {"workers": 2, "kernels": "torch"},
}


@pytest.mark.long
@pytest.mark.parametrize("condition", CONDITIONS)
@pytest.mark.parametrize("name", FAMILIES)
def test_so_it_does_on_every_path(
    tmp_path: Path,
    make_driver: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    condition: str,
) -> None:
    path = write_random(tmp_path / "model", FAMILIES[name])
    if "Triton" in condition:
        monkeypatch.setattr(model_runner, "select_kernels", lambda _: select_triton())
        monkeypatch.setattr(model_runner, "MIN_GEMM_ROWS", 0)
    driver = make_driver(path, **CONDITIONS[condition])
    tolerance = BFLOAT16 if condition == "bfloat16" else 2e-3
    theirs = find_class(FAMILIES[name])
    check_preempted(path, prompt(75, 0), driver, theirs, tolerance=tolerance)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_model_with_more_parts_says_once_that_its_text_alone_is_served(
    tmp_path: Path, start_pool: Callable[..., Any], workers: int
) -> None:
    path, logged = write_random(tmp_path / "model", FAMILIES["smolvlm"]), list[str]()
    if workers == 1:
        build_executor(ExecutionSettings(path, device="cpu", max_model_length=64), logged.append)
    else:
        start_pool(path, workers, log=logged.append)
    assert [line for line in logged if "text model alone" in line] == [
        "the checkpoint also has model.connector and model.vision_model: the text model alone is served"
    ]
