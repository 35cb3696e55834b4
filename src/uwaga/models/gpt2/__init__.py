"""GPT-2, and its relative with alternating dense and banded layers, as GPT-3 has them."""
