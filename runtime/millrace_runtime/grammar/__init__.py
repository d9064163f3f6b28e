"""Structured output: a schema, regular expression, list of texts or grammar as a mask over a vocabulary.

llguidance does the work. This package knows no HTTP, no torch and no engine.
"""
