"""A client's JSON schema: what of it llguidance takes, what can be said otherwise, and what is refused.

This package writes no grammar, and calls no library for one.
"""
