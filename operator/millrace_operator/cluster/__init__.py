"""The only package that talks to the API server, and beside it a fake one for faults. Decides nothing."""
