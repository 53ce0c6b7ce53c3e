"""The embedded store: SQLite files in one directory, one writing process per source, any number of readers."""
