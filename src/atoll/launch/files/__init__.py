"""What launch files say, as text: scripts followed but never run, values of TOML, JSON and YAML."""
