"""One file per group of commands; each command is a plain function with typer annotations."""
