"""`python -m uwaga.cli`: the command if its script is not on the path."""

from uwaga.cli import main

main()
