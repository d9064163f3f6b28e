"""What `--shape` names: a model, and what is compared at it. Pure."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.runtime.figures import Manner
from benchmarks.runtime.models.shapes import MOE, QWEN3, SMALL, Shape
from benchmarks.runtime.workload import PRECISIONS

PARTS_OF_OURS = (
    *("memory", "replicas", "rows", "grammars", "chats", "turns", "drafts", "beside", "waves", "kv"),
    *("formats", "start"),
)
"""These measure our engine, or compare with it: they are nothing without it."""
SERVERS, LIBRARIES = ("llama.cpp", "vllm"), ("openvino", "onnxruntime")


@dataclass(frozen=True)
class Subject:
    """A model that engines are compared at."""

    name: str
    title: str
    stem: str
    """How the names of its files below $PEERS begin."""
    shape: Shape
    parts: tuple[str, ...]
    """The cases that are measured, and the parts of ours."""
    compared: tuple[tuple[str, tuple[str, ...]], ...]
    """Which cases are put over the best peer's, and at which precisions."""
    peers: tuple[str, ...] = SERVERS
    precisions: tuple[str, ...] = ("bf16",)
    manners: tuple[Manner, ...] = (Manner.HTTP,)
    """How ours is asked: in process too where libraries are compared."""

    def list_rows(self) -> Iterator[tuple[str, str]]:
        """Yield each case and precision that is put over the best peer's."""
        for case, precisions in self.compared:
            yield from ((case, precision) for precision in precisions)

    def list_own_rows(self) -> Iterator[tuple[str, str, Manner]]:
        """Yield each case, precision and manner in which ours is measured."""
        cases = [part for part in self.parts if part not in PARTS_OF_OURS]
        yield from itertools.product(cases, self.precisions, self.manners)

    def name_row(self, case: str, precision: str) -> str:
        """Return how the figures of a row begin: Llama's, the first, name no shape."""
        return f"{case}_{precision}" if self.name == "llama" else f"{self.name}_{case}"


LLAMA = Subject(
    name="llama",
    title="Llama's shape",
    stem="small",
    shape=SMALL,
    parts=("single", "prefill", "c8", "c32", *PARTS_OF_OURS),
    compared=(
        ("single", PRECISIONS),
        ("prefill", ("bf16", "int8")),
        ("c8", ("bf16",)),
        ("c32", PRECISIONS),
    ),
    peers=(*SERVERS, *LIBRARIES, "transformers"),
    precisions=PRECISIONS,
    manners=(Manner.HTTP, Manner.LIBRARY),
)
SUBJECTS = {
    subject.name: subject
    for subject in (
        LLAMA,
        Subject(
            name="qwen3",
            title="Qwen3-0.6B's shape",
            stem="qwen3",
            shape=QWEN3,
            parts=("single", "prefill", "c32"),
            compared=(("single", ("bf16",)), ("prefill", ("bf16",)), ("c32", ("bf16",))),
        ),
        Subject(
            name="moe",
            title="a small Qwen3-MoE's shape",
            stem="moe",
            shape=MOE,
            parts=("single", "c32"),
            compared=(("single", ("bf16",)), ("c32", ("bf16",))),
        ),
    )
}
