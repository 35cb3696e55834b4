"""Pre-norm stacks with rotary positions: ModernBERT, and decoders of the shape of Llama (Mistral, Qwen2, Qwen3)."""
