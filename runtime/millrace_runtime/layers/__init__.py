"""What models are made of: layers that hold weights and call kernels. Know no sequence, plan or file."""
