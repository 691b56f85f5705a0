"""Parsers of launch files: shell scripts (never run), logs, values of TOML, JSON and YAML."""
