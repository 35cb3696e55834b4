"""The steps of the lesson."""
