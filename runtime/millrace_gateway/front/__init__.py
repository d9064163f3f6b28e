"""A client's request and its answer: HTTP, headers, bodies, the connection to a replica."""
