"""A model's memory on a device, computed from its config.json and its files' headers alone.

Pure: no I/O, no clock, no torch, and the standard library only. So the fetch, the operator, the plugin and
the replica can all use it. The replica plans its memory with the same functions.
"""
