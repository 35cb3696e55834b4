"""The pages of the lesson, a module each."""
