"""Ways to compute a map's weights and statistics; ../spec.py says what each of them offers."""
