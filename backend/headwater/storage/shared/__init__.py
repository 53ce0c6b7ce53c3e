"""What both back ends do alike."""
