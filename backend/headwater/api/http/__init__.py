"""The HTTP server around the application, and what is read from strangers."""
