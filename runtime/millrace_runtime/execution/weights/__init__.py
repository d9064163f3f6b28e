"""The weights of a checkpoint: its files, their tensors as stored, and packed for the kernels."""
