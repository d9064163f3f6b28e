"""What other formats a model's files have, where none of them is safetensors."""

from collections.abc import Collection, Mapping
from fnmatch import fnmatchcase
from typing import Final

TORCH: Final = "pickled weights of torch"
PICKLES: Final = "pickles of Python"
SERVED: Final = ".safetensors"
FORMATS: Final[Mapping[str, str]] = {
    ".gguf": "GGUF",
    ".bin": TORCH,
    ".pt": TORCH,
    ".pth": TORCH,
    ".ckpt": TORCH,
    ".pkl": PICKLES,
    ".pickle": PICKLES,
    ".npz": "NumPy",
    ".nemo": "NeMo",
    ".h5": "TensorFlow",
    ".msgpack": "Flax",
    ".onnx": "ONNX",
}
"""By the ending of a file's name."""
USUAL_NAMES: Final = ("pytorch_model.bin", "tf_model.h5", "flax_model.msgpack")
"""Of a model's weights in one file, where a source lists no files."""
_OF_TRAINING: Final = (
    *("training_args.bin", "optimizer.*", "scheduler.*", "scaler.*", "rng_state*"),
    *("*optim_states.pt", "*model_states.pt"),  # of DeepSpeed
)
"""What training leaves beside the weights. While somebody uploads both, these are often there first."""
_MAX_NAME: Final = 80


def find_formats(names: Collection[str]) -> dict[str, str]:
    """Return the formats of weights that files have beside safetensors, each with the first file's name.

    In a folder below that has safetensors there may be a whole model of its own, as where the folder above a
    model's was written. Then only the files beside config.json tell the format.
    """
    is_another_below = any(name.endswith(SERVED) and "/" in name for name in names)
    formats: dict[str, str] = {}
    for name in sorted(name for name in names if "/" not in name or not is_another_below):
        file = name.lower().rpartition("/")[2]
        known = next((FORMATS[ending] for ending in FORMATS if file.endswith(ending)), None)
        if known and not any(fnmatchcase(file, pattern) for pattern in _OF_TRAINING):
            formats.setdefault(known, name)
    return formats


def explain_formats(names: Collection[str]) -> str:
    """Return why files without safetensors beside config.json can't be served, naming what is there."""
    found = [f"{known} ({name[:_MAX_NAME]})" for known, name in sorted(find_formats(names).items())]
    elsewhere = sorted(name for name in names if name.endswith(SERVED) and "/" in name)
    if elsewhere and not found:
        return (
            f"{elsewhere[0][:_MAX_NAME]} is not beside config.json, where replicas read *{SERVED}: put it "
            "there, or name it in model.safetensors.index.json"
        )
    there = f" There are {' and '.join(found)}." if found else ""
    beside = " beside config.json" if elsewhere else ""
    return (
        f"there are no *{SERVED}{beside}, and replicas read no other weights.{there} Convert the model first"
    )
