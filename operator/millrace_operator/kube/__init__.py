"""The API server's client, and a fake one for faults. All writes go through it; Kopf only watches."""
