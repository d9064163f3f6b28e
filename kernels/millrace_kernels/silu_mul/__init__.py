"""The gated activation of a Llama-shaped MLP. README.md has the maths.

Knows tensors; not models, sequences or schedules.
"""
