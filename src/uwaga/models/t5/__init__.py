"""T5, version 1.0 and 1.1, and mT5."""
