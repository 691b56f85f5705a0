"""A local web explorer over stored runs: `atoll serve`. It reads, and never writes."""
