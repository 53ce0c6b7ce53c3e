"""The admin paths of the published service, in its shapes."""
