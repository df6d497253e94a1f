"""`python -m unlazy.cli`."""

from unlazy.cli import main

main()
