"""The `millrace` command: names the sub-commands and loads only the one that was asked for."""
