"""The parts that ask our own server under more loads, by the names of `--only`."""

from collections.abc import Callable, Mapping

from benchmarks.runtime.drafts.speed import measure_drafts
from benchmarks.runtime.loads.beside_prefill import measure_beside_prefill
from benchmarks.runtime.loads.long_decode import measure_long_decode
from benchmarks.runtime.loads.second_turn import measure_second_turn
from benchmarks.runtime.loads.setting import Found, Setting
from benchmarks.runtime.loads.waves import measure_waves

OWN_LOADS: Mapping[str, Callable[[Setting], Found]] = {
    "turns": measure_second_turn,
    "drafts": measure_drafts,
    "beside": measure_beside_prefill,
    "waves": measure_waves,
    "kv": measure_long_decode,
}
