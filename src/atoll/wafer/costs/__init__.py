"""What codes, homes and transitions cost on a rectangle of dies."""
