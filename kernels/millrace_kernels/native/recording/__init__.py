"""A model's forward as a list of operations: recorded once, on tensors without memory, and checked."""
