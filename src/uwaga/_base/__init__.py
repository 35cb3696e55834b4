"""Floor 0: errors, shapes, environment and the native library. Imports nothing of the floors above."""
