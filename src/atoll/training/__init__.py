"""Training runs on existing hardware: costs of layouts, and the search for the best layout."""
