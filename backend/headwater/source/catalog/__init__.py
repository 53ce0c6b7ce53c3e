"""What the catalog of a source says, in the form in which the stream describes it."""
