"""How checkpoints quantise their matrices: what config.json says, and the tensors that a matrix has. Pure."""
