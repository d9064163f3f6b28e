"""Steps on CPUs in native code: built or found, checked, recorded once and run by threads of our own.

README.md says how the parts fit. Knows tensors; not models, sequences or schedules.
"""
