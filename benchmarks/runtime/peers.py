"""Other engines, where they lie in the folder that $PEERS names; docs/development.md shows its layout.

Each runs at the best settings we know for it on a CPU, with the same number of threads as ours.
"""

import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.runtime.client import LlamaCpp, OpenAI, PlainOpenAI
from benchmarks.runtime.engines import PORT, EngineSpec
from benchmarks.runtime.machine import describe_machine, pick_cpus
from benchmarks.runtime.ours import MODEL_NAME, with_tokens

OFFLINE = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}


Builder = Callable[[Path, Path, str, int], EngineSpec]
"""From $PEERS, the model's path, the precision and the number of threads."""


@dataclass(frozen=True)
class Peer:
    """An engine that may be installed."""

    name: str
    program: str
    """What must be there for it to run, below $PEERS."""
    models: Mapping[str, str]
    """Its model by precision, below $PEERS, with {stem} for the name of what is compared."""
    build: Builder
    ask_version: tuple[str, ...] = ()
    """A command, below $PEERS, whose first line with a digit is its version; a library's driver says it."""
    build_caching: Builder | None = None
    """With its prefix cache, where it is compared so: it answers with token ids."""

    def name_model(self, stem: str, precision: str) -> str:
        """Return where its model of a precision lies, below $PEERS."""
        return self.models[precision].format(stem=stem)

    def find_missing(self, folder: Path, stem: str, precision: str) -> str | None:
        """Return what keeps it from running at a precision that it has, or None."""
        paths = (self.program, self.name_model(stem, precision))
        missing = [path for path in paths if not (folder / path).exists()]
        return f"$PEERS/{missing[0]} is not there" if missing else None

    def read_version(self, folder: Path) -> str | None:
        """Return its version if the program reports it."""
        if not self.ask_version:
            return None
        command = [str(folder / self.ask_version[0]), *self.ask_version[1:]]
        said = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        lines = (said.stdout + said.stderr).splitlines()
        told = next((line.strip() for line in lines if any(map(str.isdigit, line))), None)
        return told and told.removeprefix("version: ")


def build_llama_cpp(
    folder: Path, model: Path, precision: str, num_threads: int, *, is_caching: bool = False
) -> EngineSpec:
    """Return llama.cpp's server with 32 slots of 1152 tokens each.

    `is_caching`: prompts begin with what a slot or its cache in the host's memory has of them.
    """
    command = [str(folder / "bin/llama-server"), "-m", str(model), "--host", "127.0.0.1", "--port", PORT]
    command += ["-t", str(num_threads), "-tb", str(num_threads), "-np", "32", "-c", str(32 * 1152)]
    command += ["--no-webui", "-fa", "auto", "-lv", "1"]
    command += [] if is_caching else ["--cache-ram", "0"]
    return EngineSpec("llama.cpp", precision, tuple(command), dialect=LlamaCpp(is_caching=is_caching))


def build_vllm(
    folder: Path, model: Path, precision: str, num_threads: int, *, is_caching: bool = False
) -> EngineSpec:
    """Return vLLM's server, bound to its cores and, as its manual says, with tcmalloc and Intel's OpenMP."""
    command = [str(folder / "venvs/vllm/bin/vllm"), "serve", str(model), "--served-model-name", MODEL_NAME]
    # Without AVX-512 torch has no bfloat16 product of its own: float32 is five times as fast there.
    dtype = "bfloat16" if "avx512f" in describe_machine()["flags"] else "float32"
    command += ["--host", "127.0.0.1", "--port", PORT, "--dtype", dtype, "--max-model-len", "2048"]
    command += ["--enable-prefix-caching" if is_caching else "--no-enable-prefix-caching"]
    command += ["--max-num-seqs", "64", "--disable-uvicorn-access-log"]
    preloads = find_preloads(folder)
    environment = {
        "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, pick_cpus(num_threads))),
        "OMP_NUM_THREADS": str(num_threads),
        "LD_PRELOAD": ":".join(str(path) for path in preloads.values() if path is not None),
        "VLLM_CACHE_ROOT": str(folder / "cache/vllm"),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "cache/inductor"),
    }
    lacks = ", ".join(name for name, path in preloads.items() if path is None)
    dialect = with_tokens() if is_caching else OpenAI(MODEL_NAME)
    return EngineSpec("vllm", precision, tuple(command), OFFLINE | environment, dialect, lacks=lacks)


def find_preloads(folder: Path) -> dict[str, Path | None]:
    """Return where the libraries lie that vLLM's manual wants preloaded, None for one that is not there."""
    places = {"libtcmalloc_minimal.so.4": folder / "build", "libiomp5.so": folder / "venvs/vllm/lib"}
    return {name: next(place.rglob(name), None) for name, place in places.items()}


def build_transformers(folder: Path, model: Path, precision: str, num_threads: int) -> EngineSpec:
    """Return transformers' server; it takes no token ids, so only its start is measured."""
    command = [str(folder / "bin/transformers"), "serve", str(model), "--continuous-batching"]
    command += ["--attn-implementation", "sdpa", "--device", "cpu", "--dtype", "bfloat16"]
    command += ["--host", "127.0.0.1", "--port", PORT]
    environment = OFFLINE | {"OMP_NUM_THREADS": str(num_threads)}
    return EngineSpec("transformers", precision, tuple(command), environment, PlainOpenAI(str(model)))


def build_library(name: str, folder: Path, model: Path, precision: str, num_threads: int) -> EngineSpec:
    """Return the driver of a library in a virtual environment of the same name."""
    python = str(folder / "venvs" / name / "bin/python")
    command = (python, "-m", f"benchmarks.runtime.drivers.{name}", str(model), str(num_threads))
    return EngineSpec(name, precision, command, OFFLINE)


CONVERTER, QUANTISER = "bin/convert_hf_to_gguf", "bin/llama-quantize"
"""llama.cpp's own, below $PEERS."""
CHECKPOINT = "models/{stem}-bf16"
VLLM = Peer(
    "vllm",
    "venvs/vllm/bin/vllm",
    {"bf16": CHECKPOINT},
    build_vllm,
    # its own --version loads torch and takes 20 s
    ("venvs/vllm/bin/python", "-c", "import importlib.metadata as m; print(m.version('vllm-cpu'))"),
    partial(build_vllm, is_caching=True),
)
PEERS = (
    Peer(
        "llama.cpp",
        "bin/llama-server",
        {"bf16": "models/gguf/{stem}-bf16.gguf"}
        | {"int8": "models/gguf/{stem}-Q8_0.gguf", "int4": "models/gguf/{stem}-Q4_0.gguf"},
        build_llama_cpp,
        ("bin/llama-server", "--version"),
        partial(build_llama_cpp, is_caching=True),
    ),
    VLLM,
    Peer(
        "openvino",
        "venvs/openvino/bin/python",
        # its bf16 is an fp16 file: it converts while it loads
        {"bf16": "models/ov/{stem}-fp16", "int8": "models/ov/{stem}-int8", "int4": "models/ov/{stem}-int4"},
        partial(build_library, "openvino"),
    ),
    Peer(
        "onnxruntime",
        "venvs/onnxruntime/bin/python",
        {"int8": "models/ort/{stem}-int8", "int4": "models/ort/{stem}-int4"},
        partial(build_library, "onnxruntime"),
    ),
)
START_ONLY = Peer(
    "transformers",
    "bin/transformers",
    {"bf16": CHECKPOINT},
    build_transformers,
    ("bin/transformers", "version"),
)
PYTHON_PEERS = ("vllm", "transformers")
"""Servers written in Python, whose starts ours is compared with."""
