"""Training tools: what each can run, how fast, and its launch files. One folder per tool."""
