"""`POST /upload`: what devices wrote, for developers who want no backend of their own."""
