"""The HTTP server around the application, and its limits on untrusted clients."""
