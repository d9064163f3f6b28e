"""Seeded faults measure what the unit tests find: sixty small faults, each judged by its package's tests.

`draw` writes faults.json from the sources of one commit, with a fixed seed. `judge` puts one fault at a time
into a tree, by its text, and runs that tree's tests until one fails. `table` compares two runs of it.
"""
