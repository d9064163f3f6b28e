"""Engines that are libraries, each driven in a process of its own Python.

A driver imports the standard library, its engine and nothing else: it runs in the peer's environment.
"""
