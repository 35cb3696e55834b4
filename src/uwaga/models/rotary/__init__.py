"""Pre-norm stacks with rotary positions: ModernBERT, and models of the shape of Llama (Mistral, Qwen2, Qwen3, Gemma 2 and 3, EuroBERT)."""
