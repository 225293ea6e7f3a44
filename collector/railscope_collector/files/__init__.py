"""Files of administrators, read again when they change."""
