"""What a client is told: requests, sessions and who is concerned by a change. Pure: nothing here reads or waits."""
