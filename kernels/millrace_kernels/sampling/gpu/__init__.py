"""The draw on GPUs: Triton kernels, in the order of `../README.md`, and the function that launches them."""
