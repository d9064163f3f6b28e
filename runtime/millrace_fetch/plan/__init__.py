"""What is fetched: a URI, the files of its source, and those of them that a replica needs."""
