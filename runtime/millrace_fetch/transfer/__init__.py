"""Bytes on their way: ranges of a file, several at a time, with retries, until each file is whole."""
