"""The rule language: a sync config's text to a plan, and a plan to what rows and requests give. No I/O."""
