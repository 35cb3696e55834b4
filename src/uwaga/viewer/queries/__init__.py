"""Queries about attention maps: what a page may ask about them, answered in bounded time and memory."""
