"""A client's request and its answer: HTTP, headers, bodies, waiting, and the connection to a replica."""
