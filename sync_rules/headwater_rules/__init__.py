"""The rule language: compiles the text of a sync config to a plan, and evaluates rows and requests by it. No I/O."""
