"""What other formats a model's files have, where none of them is safetensors."""

from collections.abc import Collection, Mapping
from fnmatch import fnmatchcase
from typing import Final

TORCH: Final = "pickled weights of torch"
FORMATS: Final[Mapping[str, str]] = {
    ".gguf": "GGUF",
    ".bin": TORCH,
    ".pt": TORCH,
    ".pth": TORCH,
    ".ckpt": TORCH,
    ".h5": "TensorFlow",
    ".msgpack": "Flax",
    ".onnx": "ONNX",
}
"""By the ending of a file's name."""
USUAL_NAMES: Final = ("pytorch_model.bin", "tf_model.h5", "flax_model.msgpack")
"""Of a model's weights in one file, where a source lists no files."""
_OF_TRAINING: Final = ("training_args.bin", "optimizer.*", "scheduler.*", "scaler.*", "rng_state*")
"""What training leaves beside the weights. While somebody uploads both, these are often there first."""
_MAX_NAME: Final = 80


def find_formats(names: Collection[str]) -> dict[str, str]:
    """Return the formats of weights that files have beside safetensors, each with the first file's name."""
    formats: dict[str, str] = {}
    for name in sorted(names):
        file = name.lower().rpartition("/")[2]
        known = next((FORMATS[ending] for ending in FORMATS if file.endswith(ending)), None)
        if known and not any(fnmatchcase(file, pattern) for pattern in _OF_TRAINING):
            formats.setdefault(known, name)
    return formats


def explain_formats(names: Collection[str]) -> str:
    """Return why files without safetensors among them can't be served, naming the formats that are there."""
    found = [f"{known} ({name[:_MAX_NAME]})" for known, name in sorted(find_formats(names).items())]
    there = f" There are {' and '.join(found)}." if found else ""
    return f"there are no *.safetensors, and replicas read no other weights.{there} Convert the model first"
