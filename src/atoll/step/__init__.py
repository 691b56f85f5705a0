"""One training step: the rules that searched chips, devices and wafers share, each in one place."""
