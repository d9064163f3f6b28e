"""What the operator costs with many services, and how fast it acts."""
