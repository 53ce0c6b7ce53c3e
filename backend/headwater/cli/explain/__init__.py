"""`headwater explain`: explains which rows a user's devices are sent, and why."""
