"""Tensor parallelism: a process for each device, with its part of the model, and an executor over all."""
