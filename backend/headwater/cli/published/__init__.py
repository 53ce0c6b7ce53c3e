"""Commands under the names that existing compose files and scripts call."""
