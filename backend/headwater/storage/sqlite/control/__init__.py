"""What a store knows beside rows and history: who writes it, what was asked, what it serves."""
