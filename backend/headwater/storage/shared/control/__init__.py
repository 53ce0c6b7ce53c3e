"""Control tables, which are the same in every SQL back end: versions of the sync config, row sides, requests."""
