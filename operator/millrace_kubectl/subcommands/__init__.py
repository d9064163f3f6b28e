"""One file a sub-command: SUMMARY, DESCRIPTION, `add_arguments`, and `run`, which returns what is printed."""
