"""Which revisions of a service run, each with how many replicas. Pure."""
