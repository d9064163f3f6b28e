"""Watches to cache to queue, the Lease, and the supervisor of the watch layer. Decides nothing."""
