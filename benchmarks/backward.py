"""How fast are forward and backward together, compared with PyTorch's? The work is counted as 2 + 5 products."""

from cases import backward
from harness import options, parse, run_grid

if __name__ == "__main__":
    run_grid(parse(options(__doc__)), "Forward and backward", backward, operands=14)
