"""What bulk work hands over, and whole stores that come and go."""
