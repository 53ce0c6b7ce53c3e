"""`POST /upload`: takes the writes of devices, for apps without a backend of their own."""
