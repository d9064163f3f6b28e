"""Decides what to fetch: a URI, the files of its source, and those that a replica needs. Pure."""
