"""The failures of computing a model's memory.

FitError
├── ArchitectureError     config.json describes a model that is not supported
├── HeaderError           a file's header is no safetensors header
├── FactsError            a text has no facts of a model
├── NoRoomError           a KV cache has no room for one sequence
└── SettingError          an accelerator or an amount of memory can't be parsed
"""


class FitError(Exception):
    """The root of this package's exceptions. Each text is one line."""


class ArchitectureError(FitError):
    """config.json describes a model that is not supported. The text names the part and the supported ones."""


class HeaderError(FitError):
    """A file's header is no safetensors header; the text says why."""


class FactsError(FitError):
    """A text has no facts of a model, or the facts of a newer version."""


class NoRoomError(FitError):
    """A KV cache has no room for one sequence of the required length."""


class SettingError(FitError):
    """An accelerator or an amount of memory can't be parsed. The text says what to write."""
