"""What users of training do wrong, in words. Each text has a test."""

from uwaga._base.errors import DataError

__all__ = ["ConfigError", "DataError", "TrainingError"]


class ConfigError(ValueError):
    """A configuration that cannot be used; the message begins with the file, and names the key."""


class TrainingError(RuntimeError):
    """A training that cannot begin or go on; the message names the last good checkpoint where there is one."""
