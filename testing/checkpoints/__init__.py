"""Model checkpoints that tests and benchmarks write, and what a runner allocates for them."""
