"""The sub-commands by subject: `add_parsers` adds them, and a function of each returns what is printed."""
