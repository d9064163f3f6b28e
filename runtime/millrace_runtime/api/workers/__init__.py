"""The HTTP process's child processes: what each runs, and the grammar worker as its parent sees it."""
