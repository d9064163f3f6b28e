"""The other formats of a model's files, if none of them is safetensors."""

from collections.abc import Collection, Iterator, Mapping
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
"""Names of a single weights file, for sources that list no files."""
_OF_TRAINING: Final = (
    *("training_args.bin", "optimizer.*", "scheduler.*", "scaler.*", "rng_state*"),
    *("*optim_states.pt", "*model_states.pt"),  # of DeepSpeed
)
"""Files that training writes beside the weights. During an upload these often arrive first."""
_CONFIG: Final = "config.json"
_MAX_NAME: Final = 80


def find_formats(names: Collection[str]) -> dict[str, str]:
    """Return the formats of weights other than safetensors, each with the first file's name.

    A subfolder with safetensors may be a separate model, with everything below it. Without a config.json any
    subfolder may be one: the path may name the folder above a model's.
    """
    models = {name.rpartition("/")[0] for name in names if name.endswith(SERVED)} - {""}
    if models and _CONFIG not in names:
        names = [name for name in names if "/" not in name]
    formats: dict[str, str] = {}
    for name in sorted(name for name in names if models.isdisjoint(_folders(name))):
        file = name.lower().rpartition("/")[2]
        known = next((FORMATS[ending] for ending in FORMATS if file.endswith(ending)), None)
        if known and not any(fnmatchcase(file, pattern) for pattern in _OF_TRAINING):
            formats.setdefault(known, name)
    return formats


def explain_formats(names: Collection[str]) -> str:
    """Return why files without safetensors beside config.json can't be served, and which files are there."""
    formats = find_formats(names)
    found = " and ".join(f"{known} ({name[:_MAX_NAME]})" for known, name in sorted(formats.items()))
    elsewhere = sorted(name[:_MAX_NAME] for name in names if name.endswith(SERVED) and "/" in name)
    if elsewhere and not found:
        return (
            f"{elsewhere[0]} is not beside {_CONFIG}, where replicas read *{SERVED}: put it there, or name "
            "it in model.safetensors.index.json"
        )
    beside = f" beside {_CONFIG}" if elsewhere else ""
    missing = f"there are no *{SERVED}{beside}, and replicas read no other weights."
    if elsewhere and all("/" in name for name in formats.values()):  # either may be the model
        there = f"There are {found}, and {elsewhere[0]}."
        return f"{missing} {there} Convert the model, or put its *{SERVED}{beside}"
    there = f" There are {found}." if found else ""
    return f"{missing}{there} Convert the model first"


def _folders(name: str) -> Iterator[str]:
    """Yield the folders of a file, except the model's own."""
    while name := name.rpartition("/")[0]:
        yield name
