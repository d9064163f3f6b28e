"""What can go wrong in telling what a model takes.

FitError
├── ArchitectureError     config.json describes a model that is not supported
├── HeaderError           a file's header is no safetensors header
├── FactsError            text that holds no facts of a model
├── NoRoomError           a KV cache has no room for one sequence
└── SettingError          an accelerator or an amount of memory that can't be read
"""


class FitError(Exception):
    """The root of this package's exceptions. Each text is one line."""


class ArchitectureError(FitError):
    """config.json describes a model that is not supported; the text says which part and what is."""


class HeaderError(FitError):
    """A file's header is no safetensors header; the text says why."""


class FactsError(FitError):
    """Text that holds no facts of a model, or those of a newer version."""


class NoRoomError(FitError):
    """A KV cache has no room for one sequence of the length asked for."""


class SettingError(FitError):
    """An accelerator or an amount of memory that can't be read; the text says what to write."""
