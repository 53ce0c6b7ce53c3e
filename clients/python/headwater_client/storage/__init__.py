"""A device's file: what was downloaded, what waits for upload, and the app's tables, each change one transaction."""
