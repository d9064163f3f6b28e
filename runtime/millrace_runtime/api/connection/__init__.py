"""HTTP connections: limits that uvicorn lacks, layers around the application, the halves of an exchange."""
