"""Area and power by template: our own, and one chip of any."""
