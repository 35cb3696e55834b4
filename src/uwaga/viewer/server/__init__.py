"""The view in a browser: a server for this machine alone, its guard, and its end."""
