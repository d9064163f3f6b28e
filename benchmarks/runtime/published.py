"""The figures that a run can have: their names, their order in its table, and their aims. Pure."""

from typing import NamedTuple

from benchmarks.runtime.figures import Manner
from benchmarks.runtime.models.subjects import LLAMA, SUBJECTS, Subject
from benchmarks.runtime.replicas import SHARED_CASES
from benchmarks.runtime.workload import PRECISIONS, SHARED_PREFIX


class Aim(NamedTuple):
    """What a figure's median should reach."""

    at_least: float | None = None
    at_most: float | None = None

    def __str__(self) -> str:
        return f"at least {self.at_least}" if self.at_least is not None else f"at most {self.at_most}"

    def is_met(self, median: float) -> bool:
        """Whether a median reaches it."""
        return (self.at_least is None or median >= self.at_least) and (
            self.at_most is None or median <= self.at_most
        )


MANNERS_COMPARED = ("single", "c32")
"""In which cases our engine over HTTP is put over the same in process."""


def name_over_best(subject: Subject, case: str, precision: str) -> str:
    """Return the figure that puts ours over the best peer's."""
    return f"{subject.name_row(case, precision)}_over_best"


def name_over_engine(case: str, precision: str) -> str:
    """Return the figure that puts our server over our engine in process."""
    return f"http_over_engine_{case}_{precision}"


def name_over_itself(subject: Subject, case: str, precision: str, manner: Manner) -> str:
    """Return the figure that puts ours over our former commit's."""
    ending = "over_itself" if manner is Manner.HTTP else "engine_over_itself"
    return f"{subject.name_row(case, precision)}_{ending}"


OVER_ENGINE = tuple(
    name_over_engine(case, precision) for case in MANNERS_COMPARED for precision in PRECISIONS
)
FIGURES = (
    *(name_over_best(LLAMA, *row) for row in LLAMA.list_rows()),
    *OVER_ENGINE,
    "decode_over_memory_limit",
    *(f"two_replicas_over_one_{case.name}" for case in SHARED_CASES),
    "start_seconds_over_python_peers",
)
"""All that a run of Llama's shape with every engine finds beside those below, in the published order."""
REQUEST_FIGURES = (
    "json_schema_over_free",
    "json_schema_over_vllm",
    "sampling_all_over_greedy",
    "schema_compile_ms_p50",
    "schema_compile_ms_p99",
    "mask_ms_p99",
    "lock_held_ms",
)
"""Of the parts `rows` and `grammars`. One of them knows a peer."""
SHARED_PREFIX_OVER_BEST = f"{SHARED_PREFIX}_over_best"
SECOND_TURN = "ttft_second_turn_over_first"
DRAFTS_SINGLE, DRAFTS_FAIL, DRAFTS_C32 = (
    *("ngram_single_over_off", "ngram_single_over_off_at_0", "ngram_c32_over_off"),
)
ITL_BESIDE, TTFT_BESIDE = "itl_p99_beside_prefill_over_alone", "ttft_beside_decoders_over_alone"
CONTINUOUS = "continuous_over_static"
KV_INT8 = "kv_int8_decode_8k_over_bf16"
LOAD_FIGURES = (
    *(SHARED_PREFIX_OVER_BEST, SECOND_TURN, DRAFTS_SINGLE, DRAFTS_FAIL, DRAFTS_C32),
    *(ITL_BESIDE, TTFT_BESIDE, CONTINUOUS, KV_INT8),
)
"""Of the parts `chats`, `turns`, `drafts`, `beside`, `waves` and `kv`."""


OVER_OWN = {
    ("awq", "single"): "int4",
    ("awq", "c32"): "int4",
    ("w8a8", "c32"): "int8",
    ("fp8", "single"): "bf16",
}
"""The precision that we round to ourselves, by the published format that is put over it, and its case."""
LOAD_SECONDS = "load_seconds_{}_over_bf16"


def name_over_own(name: str, beside: str, case: str) -> str:
    """Return the figure that puts a published format over what we round ourselves, or over bf16."""
    return f"{name}_{case}_over_{beside}"


FORMAT_FIGURES = (
    *(name_over_own(name, beside, case) for (name, case), beside in OVER_OWN.items()),
    *(f"{name}_{case}_over_best" for name, case in OVER_OWN if name != "fp8"),
    *(LOAD_SECONDS.format(name) for name in ("awq", "w8a8", "fp8")),
)
"""Of the part `formats`. No peer has FP8 files that it reads on CPUs."""


def list_figures(subject: Subject) -> tuple[str, ...]:
    """Return all figures that a run of a subject can have, in the order of its table."""
    own = (*FIGURES, *REQUEST_FIGURES, *LOAD_FIGURES, *FORMAT_FIGURES) if subject.name == LLAMA.name else ()
    best = [name_over_best(subject, *row) for row in subject.list_rows()]
    itself = [name_over_itself(subject, *row) for row in subject.list_own_rows()]
    return tuple(dict.fromkeys((*own, *best, *itself)))


AIMS = {
    "json_schema_over_free": Aim(at_least=0.95),
    "json_schema_over_vllm": Aim(at_least=1.5),
    "sampling_all_over_greedy": Aim(at_least=0.9),
    "schema_compile_ms_p50": Aim(at_most=2),
    "schema_compile_ms_p99": Aim(at_most=50),
    "mask_ms_p99": Aim(at_most=1),
    "lock_held_ms": Aim(at_most=5),
    SHARED_PREFIX_OVER_BEST: Aim(at_least=1.3),
    SECOND_TURN: Aim(at_most=0.1),
    DRAFTS_SINGLE: Aim(at_least=1.5),
    DRAFTS_FAIL: Aim(at_least=0.97),
    DRAFTS_C32: Aim(at_least=0.98),
    ITL_BESIDE: Aim(at_most=2),
    TTFT_BESIDE: Aim(at_most=2.5),
    CONTINUOUS: Aim(at_least=2),
    **{
        name_over_own(name, beside, case): Aim(at_least=1.5 if name == "fp8" else 0.97)
        for (name, case), beside in OVER_OWN.items()
    },
    **{f"{name}_{case}_over_best": Aim(at_least=1.1) for name, case in OVER_OWN if name != "fp8"},
    **{LOAD_SECONDS.format(name): Aim(at_most=1.2) for name in ("awq", "w8a8", "fp8")},
    KV_INT8: Aim(at_least=1.3),
    **dict.fromkeys(OVER_ENGINE, Aim(at_least=0.95)),
    **{
        name_over_best(subject, *row): Aim(at_least=1.1)
        for subject in SUBJECTS.values()
        for row in subject.list_rows()
        if subject is not LLAMA
    },
    **{
        name_over_itself(subject, *row): Aim(at_least=0.97)
        for subject in SUBJECTS.values()
        for row in subject.list_own_rows()
    },
}
"""Figures without one are compared with other engines."""
