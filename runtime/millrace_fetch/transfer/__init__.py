"""Transfers bytes: ranges of files in parallel, with retries, until each file is whole."""
