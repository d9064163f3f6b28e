"""Rotary position embedding of queries and keys, and keys and values into the cache. README.md has the maths.

Knows tensors; not models, sequences or schedules.
"""
