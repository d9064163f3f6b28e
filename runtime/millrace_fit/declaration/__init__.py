"""The parts of a family's declaration: its reading of config.json, its tensors in files, and refusals.

Families use it. It must not know any of them.
"""
