"""`python -m uwaga.cli`: the command where its script is not on the path."""

from uwaga.cli import main

main()
