"""The exception for a model that is not supported."""


class ArchitectureError(Exception):
    """config.json describes a model that is not supported; the text says which part and what is."""
