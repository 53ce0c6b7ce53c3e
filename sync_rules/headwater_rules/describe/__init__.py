"""Plans in words and as schemas, for people and for client apps."""
