"""The native library's structures and functions, field for field as in program.h."""

import ctypes
import enum
from ctypes import POINTER, Structure, c_float, c_int8, c_int32, c_int64, c_void_p
from pathlib import Path
from typing import NamedTuple

from millrace_kernels.exchange.memory import LINE
from millrace_kernels.linear.format import GROUP
from millrace_kernels.native.errors import NativeError, PoolError
from millrace_kernels.paged_attention.cache import BLOCK_SIZE, SLACK
from millrace_kernels.sampling.columns import PARAMETERS

LANES = 16
"""Number of floats in a vector, and of outputs in a strip."""
TASK_ROWS, TILE_KEYS, SPAN_KEYS = 48, 64, 512
"""Rows of an attention task, keys of a tile, and keys of a span. They determine attention's memory."""
SUMS = 64
"""Number of columns whose sums a product keeps for each row, between two blocks of inputs."""
EXPERT_ROWS = 48
"""Number of rows of an expert that are gathered at once."""
WIDE_BYTES = 4 * 256 * LANES * 4 // 16 * 17
"""The memory in which a product widens strips of 8-bit floats."""


class Type(enum.IntEnum):
    """The type of a number in the workspace."""

    FLOAT32 = 0
    BFLOAT16 = 1
    GROUPS = 2


class Format(enum.IntEnum):
    """The format of a packed matrix."""

    DENSE_FLOAT32 = 0
    DENSE_BFLOAT16 = 1
    INT8 = 2
    INT4 = 3
    INT4_GROUPS = 4
    INT4_ZEROS = 5
    FP8_FLOAT32 = 6
    FP8_BFLOAT16 = 7


class Kind(enum.IntEnum):
    """An operation."""

    EMBED = 0
    RMS_NORM = 1
    LINEAR = 2
    LINEAR_ADD = 3
    LINEAR_SILU_MUL = 4
    ROTARY_KV_WRITE = 5
    ATTENTION = 6
    SELECT = 7
    QUANTIZE = 8
    SUM = 9
    SUM_ADD = 10
    GATHER = 11
    ADD = 12
    ROUTE = 13
    EXPERTS_SILU_MUL = 14
    EXPERTS_SUM = 15
    EXPERTS_ADD = 16
    LINEAR_GELU_MUL = 17


class Gate(enum.IntEnum):
    """The activation of a gated product."""

    SILU = 1
    GELU = 2


GATES = {Kind.LINEAR_SILU_MUL: Gate.SILU, Kind.LINEAR_GELU_MUL: Gate.GELU, Kind.EXPERTS_SILU_MUL: Gate.SILU}
"""The operations of gated matrices."""


class Rows(Structure):
    """Rows in the workspace."""

    _fields_ = (("offset", c_int64), ("stride", c_int64), ("width", c_int32), ("type", c_int32))


class Matrix(Structure):
    """A packed weight."""

    _fields_ = (
        ("data", c_void_p),
        ("scales", c_void_p),
        ("bias", c_void_p),
        ("format", c_int32),
        ("inputs", c_int32),
        ("outputs", c_int32),
        ("gate", c_int32),
        ("group", c_int32),
    )


class Op(Structure):
    """One operation of a record."""

    _fields_ = (
        ("kind", c_int32),
        ("layer", c_int32),
        ("group", c_int32),
        ("x", Rows),
        ("y", Rows),
        ("routes", Rows),
        ("matrix", POINTER(Matrix)),
        ("weight", c_void_p),
        ("query_norm", c_void_p),
        ("key_norm", c_void_p),
        ("number", c_float),
        ("weight_type", c_int32),
        ("heads", c_int32),
        ("kv_heads", c_int32),
        ("head_dim", c_int32),
        ("length", c_int32),
        ("window", c_int32),
        ("parts", c_int32),
        ("num_experts", c_int32),
        ("is_softmax", c_int32),
        ("is_normalised", c_int32),
    )


class Step(Structure):
    """One step's rows."""

    _fields_ = (
        ("num_rows", c_int32),
        ("num_tokens", c_int32),
        ("num_emits", c_int32),
        ("slot", c_void_p),
        ("begin", c_void_p),
        ("count", c_void_p),
        ("start", c_void_p),
        ("row_of", c_void_p),
        ("position", c_void_p),
        ("emits", c_void_p),
        ("tokens", c_void_p),
        ("blocks", POINTER(c_void_p)),
        ("tokens_stride", c_int64),
        ("blocks_stride", c_int64),
    )


class Exchange(Structure):
    """The shared memory of workers, as in exchange/exchange.h."""

    _fields_ = (
        ("memory", c_void_p),
        ("worker_bytes", c_int64),
        ("arrivals", c_void_p),
        ("index", c_int32),
        ("count", c_int32),
    )


class Program(Structure):
    """A record and its memory."""

    _fields_ = (
        ("ops", POINTER(Op)),
        ("num_ops", c_int32),
        ("num_forward_ops", c_int32),
        ("workspace", c_void_p),
        ("kv_caches", POINTER(c_void_p)),
        ("kv_scales", POINTER(c_void_p)),
        ("kv_type", c_int32),
        ("spans", c_void_p),
        ("spans_bytes", c_int64),
        ("spans_done", c_void_p),
        ("progress", c_int64),
        ("exchange", POINTER(Exchange)),
    )


class Sampling(Structure):
    """The arguments of a step's draws, as in sampling/sampling.h."""

    _fields_ = (
        ("logits", c_void_p),
        ("logits_stride", c_int64),
        ("parameters", c_void_p),
        ("places", c_void_p),
        ("tokens", c_void_p),
        ("tokens_stride", c_int64),
        ("biases", c_void_p),
        ("biases_stride", c_int64),
        ("fixed_masks", c_void_p),
        ("fixed_masks_stride", c_int64),
        ("masks", c_void_p),
        ("masks_stride", c_int64),
        ("scratch", c_void_p),
        ("scratch_bytes", c_int64),
        ("drawn", c_void_p),
        ("faults", c_void_p),
        ("num_rows", c_int32),
        ("vocabulary", c_int32),
        ("next_row", c_int32),
    )


class Group(Structure):
    """Rounded inputs with one scale."""

    _fields_ = (("values", c_int8 * GROUP), ("scale", c_float), ("start", c_int32), ("sum", c_int32))


_STRUCTURES = (Matrix, Op, Step, Exchange, Program, Sampling, Group)
_NUMBERS = (
    LINE,
    LANES,
    GROUP,
    BLOCK_SIZE,
    SLACK,
    TASK_ROWS,
    TILE_KEYS,
    SPAN_KEYS,
    SUMS,
    EXPERT_ROWS,
    WIDE_BYTES,
)
_SIZES = (*map(ctypes.sizeof, _STRUCTURES), PARAMETERS.itemsize, *_NUMBERS)
"""The sizes of sizes.cpp, in the same order."""


class Pool(NamedTuple):
    """Threads of a library."""

    handle: int
    num_threads: int
    """The calling thread is one of them."""


class Library:
    """A loaded library. ctypes releases the interpreter's lock during each call."""

    def __init__(self, path: Path) -> None:
        """Raises NativeError for a file that can't be loaded or has other structures."""
        try:
            self._library = ctypes.CDLL(str(path))
        except OSError as error:
            raise NativeError(f"{path} can't be loaded: {error}") from error
        self._declare()
        sizes = (c_int32 * len(_SIZES))()
        self._library.millrace_sizes(sizes)
        if tuple(sizes) != _SIZES:
            raise NativeError(f"{path} has the memory layout {tuple(sizes)}, not {_SIZES}: build it again")

    def _declare(self) -> None:
        library = self._library
        library.millrace_sizes.restype = None
        library.millrace_pool_new.restype = c_void_p
        library.millrace_pool_new.argtypes = (c_int32, c_int64)
        library.millrace_pool_free.restype = None
        library.millrace_pool_free.argtypes = (c_void_p,)
        library.millrace_run.restype = None
        library.millrace_run.argtypes = (c_void_p, POINTER(Program), POINTER(Step))
        library.millrace_sample_bytes.restype = c_int64
        library.millrace_sample_bytes.argtypes = (c_int32,)
        library.millrace_weigh.restype = None
        library.millrace_weigh.argtypes = (c_void_p, c_int32, c_float, c_float, c_void_p)
        library.millrace_sample.restype = None
        library.millrace_sample.argtypes = (c_void_p, POINTER(Sampling))

    def new_pool(self, num_threads: int, scratch_bytes: int) -> Pool:
        """Start threads, each with `scratch_bytes` of its own. Raises PoolError."""
        handle: int | None = self._library.millrace_pool_new(num_threads, scratch_bytes)
        if handle is None:
            raise PoolError(f"{num_threads} threads can't be started: raise the limits")
        return Pool(handle, num_threads)

    def free_pool(self, pool: Pool) -> None:
        """End the pool's threads; none of them may be running."""
        self._library.millrace_pool_free(pool.handle)

    def run(self, pool: Pool, program: Program, step: Step) -> None:
        """Run a step and its logits on the pool's threads. One call at a time for each pool."""
        self._library.millrace_run(pool.handle, program, step)

    def sample_bytes(self, vocabulary: int) -> int:
        """Return the memory that each thread needs to sample, in bytes. It must start with zeros."""
        return int(self._library.millrace_sample_bytes(vocabulary))

    def sample(self, pool: Pool | None, asked: Sampling) -> None:
        """Draw for every row on the pool's threads, or without a pool on the caller's thread."""
        self._library.millrace_sample(None if pool is None else pool.handle, asked)

    def weigh(self, z: int, count: int, peak: float, inverse: float, weights: int) -> None:
        """Write uint32 weights of float32 z, and up to 16 more; see sampling/README.md."""
        self._library.millrace_weigh(z, count, peak, inverse, weights)
