"""What a model description may ask of us that we can't do."""


class ArchitectureError(Exception):
    """config.json describes a model that is not supported; the text says which part and what is."""
