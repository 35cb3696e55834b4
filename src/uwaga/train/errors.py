"""What users of training do wrong, in words. Each text has a test."""


class ConfigError(ValueError):
    """A configuration that cannot be used; the message begins with the file, and names the key."""


class DataError(ValueError):
    """Data that cannot be read; the message begins with the file, and the line or row where there is one."""


class TrainingError(RuntimeError):
    """A training that cannot begin or go on; the message names the last good checkpoint where there is one."""
