"""Steps on CPUs in native code: it finds or builds a library, checks it, records a step once, and runs it.

README.md describes the parts. Knows tensors; not models, sequences or schedules.
"""
