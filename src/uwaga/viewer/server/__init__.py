"""The view in a browser: an HTTP server on the loopback interface, its access control, its limits, and its shutdown."""
