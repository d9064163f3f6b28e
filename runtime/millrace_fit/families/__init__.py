"""One file for each family of models: its names in config.json and in files, and its shape.

A new family is one file and one line in `registry.py`.
"""
