"""What other formats a model's files have, where none of them is safetensors."""

from collections.abc import Collection, Mapping
from typing import Final

FORMATS: Final[Mapping[str, str]] = {
    ".gguf": "GGUF",
    ".bin": "pickled weights of torch",
    ".pt": "pickled weights of torch",
    ".pth": "pickled weights of torch",
    ".ckpt": "pickled weights of torch",
    ".h5": "TensorFlow",
    ".msgpack": "Flax",
    ".onnx": "ONNX",
}
"""By the ending of a file's name."""


def explain_formats(names: Collection[str]) -> str:
    """Return why files without safetensors among them can't be served, naming the formats that are there."""
    found = {known for name in names for ending, known in FORMATS.items() if name.lower().endswith(ending)}
    there = f" There are {' and '.join(sorted(found))}." if found else ""
    return f"there are no *.safetensors, and replicas read no other weights.{there} Convert the model first"
