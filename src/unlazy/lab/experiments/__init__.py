"""One question per file, with its claims."""
