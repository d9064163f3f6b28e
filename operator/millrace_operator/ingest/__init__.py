"""Watches, the cache and the queue that they fill, and the Lease. Decides nothing."""
