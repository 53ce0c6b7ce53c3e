"""What can be said of a source, its store and its rules without changing anything but what is asked to be forgotten.
Nothing here prints."""
