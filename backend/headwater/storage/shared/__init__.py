"""What back ends share."""
