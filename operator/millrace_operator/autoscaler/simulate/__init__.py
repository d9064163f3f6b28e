"""A service in virtual time, which runs the same `decide` as the operator: load, replicas, scrapes."""
