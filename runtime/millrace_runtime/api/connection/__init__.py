"""HTTP connections: limits that uvicorn lacks, and the two halves of an exchange."""
