"""The `millrace` command: lists the sub-commands and loads only the requested one."""
