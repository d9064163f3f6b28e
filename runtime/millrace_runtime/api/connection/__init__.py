"""A connection of HTTP: bounds that uvicorn does not have, and the two halves of an exchange."""
