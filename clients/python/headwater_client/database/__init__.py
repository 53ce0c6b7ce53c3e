"""What an app works with: tables, queries that follow changes, the upload queue, and the connection."""
