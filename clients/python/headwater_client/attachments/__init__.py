"""Files that belong to rows: kept in a local folder, and uploaded and downloaded beside the sync."""
