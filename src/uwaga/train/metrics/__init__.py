"""What a run measures: loss, error rates, samples and attention statistics; and where it is logged."""
