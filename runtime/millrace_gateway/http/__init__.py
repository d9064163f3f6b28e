"""HTTP/1.1 over asyncio Protocols and httptools: connections of clients and of replicas."""
