"""The folder that a model is fetched into: its lock, its files, and the marker that says it is whole."""
