"""Files in and out: YAML, JSON, CSV, written atomically."""
