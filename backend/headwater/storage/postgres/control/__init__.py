"""The store's state besides rows and history: leases, requests, versions, seal, statistics."""
