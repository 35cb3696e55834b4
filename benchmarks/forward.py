"""How fast is one forward pass over a dense batch, compared with PyTorch's scaled_dot_product_attention?"""

from cases import forward
from harness import options, parse, run_grid

if __name__ == "__main__":
    run_grid(parse(options(__doc__)), "Forward", forward, operands=6)
