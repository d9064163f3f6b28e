"""What is measured, ours and peers', each a command that prints a table and then one JSON line."""
