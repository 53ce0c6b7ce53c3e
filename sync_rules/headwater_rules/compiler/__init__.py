"""From the text of a sync config to its plan, or to all that is wrong with it."""
