"""The operations of a replica's steps, each with a plain-torch reference beside its kernels."""
