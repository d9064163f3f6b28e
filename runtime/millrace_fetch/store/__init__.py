"""The folder of a fetched model: its lock, its files, and the marker of a whole model."""
