"""nanotron: description and reader of its launch files."""
