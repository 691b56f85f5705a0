"""Files in and out: YAML, JSON, CSV, written whole or not at all."""
