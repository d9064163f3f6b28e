"""The sub-commands by subject: `add_parsers` adds them, and each has a function that returns its answer."""
