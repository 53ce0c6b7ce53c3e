"""`headwater dev`: everything on this machine, with a Postgres of its own, sample data and the demo app."""
