"""Tensor parallelism: a worker process for each device, with its part of the model, and their executor."""
