"""One file per group of commands; each command is a function of its question."""
