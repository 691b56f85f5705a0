"""GPT-NeoX: description and reader of its launch files."""
