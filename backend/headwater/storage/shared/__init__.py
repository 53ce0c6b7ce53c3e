"""What back ends do alike."""
