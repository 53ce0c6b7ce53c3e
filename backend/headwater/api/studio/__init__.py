"""The studio: the operators' page, and its sessions."""
