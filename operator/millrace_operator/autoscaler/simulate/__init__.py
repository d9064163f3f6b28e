"""A service in virtual time: load, replicas, scrapes, and the same `decide` as the operator's. Seeded."""
