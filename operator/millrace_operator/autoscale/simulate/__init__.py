"""A fleet of simulated replicas in virtual time, which runs the same `decide` as the operator."""
