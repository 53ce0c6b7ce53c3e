"""`headwater explain`: who is sent what, and why."""
