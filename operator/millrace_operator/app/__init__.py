"""The operator's process: its command, the parts that it puts together, its HTTP and its metrics."""
