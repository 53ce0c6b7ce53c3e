"""How replication of a source stands, and what may come to harm."""
