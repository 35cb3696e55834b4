"""What users of training do wrong, in words. Each text has a test."""


class ConfigError(ValueError):
    """A configuration that cannot be used; the message begins with the file, and names the key."""


class DataError(ValueError):
    """Data that cannot be read; the message begins with the file, and the line or row where there is one."""
