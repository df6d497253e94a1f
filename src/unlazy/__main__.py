"""`python -m unlazy`."""

from unlazy.cli import main

main()
