"""Control tables, which all back ends have alike that know SQL: versions of the sync config, row sides, requests."""
