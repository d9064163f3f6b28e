"""The operations a replica computes with: each a plain-torch reference beside its kernels."""
