"""The text of a sync config: YAML and SQL that know where they stand, and what the YAML says besides SQL."""
