"""Control tables, which both back ends have alike: versions of the sync config, row sides, requests."""
