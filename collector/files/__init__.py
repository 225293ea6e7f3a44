"""Files that administrators write, read again when they change."""
