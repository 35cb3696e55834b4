"""How fast is one causal pass compared with PyTorch's, and how much of a full pass does it take?

Only visible pairs are counted as work. --backward measures forward and backward together.
"""

from functools import partial

from cases import backward, forward
from harness import options, parse, run_grid

if __name__ == "__main__":
    parser = options(__doc__)
    parser.add_argument("--backward", action="store_true", help="forward and backward together")
    chosen = parse(parser)
    make, operands = (backward, 20) if chosen.backward else (forward, 10)
    question = "Causal, forward and backward" if chosen.backward else "Causal, forward"
    run_grid(chosen, question, partial(make, causal=True), operands=operands, full=make)
