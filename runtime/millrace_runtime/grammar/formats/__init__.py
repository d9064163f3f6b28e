"""How each format writes calls: expressions of Lark for a tool and its schema, without I/O.

This package knows the markers of the formats, and no vocabulary.
"""
