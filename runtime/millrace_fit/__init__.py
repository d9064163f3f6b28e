"""What a model takes of a device's memory, told from its config.json and its files' headers alone.

Pure: no I/O, no clock, no torch, and the standard library only. So what fetches models, the operator, the
plugin and the replica can all ask it. The replica plans its memory by the same functions.
"""
