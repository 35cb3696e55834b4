"""What a training tells: metrics.jsonl, a bar, TensorBoard; evaluation, samples, and the attention of every head."""
