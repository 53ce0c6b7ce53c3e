"""`headwater dev`: everything on this machine, with its own Postgres, sample data and the demo app."""
