"""Taking over results of bulk jobs; exporting and importing whole stores."""
