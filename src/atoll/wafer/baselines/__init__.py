"""What others would do on the same wafer."""
