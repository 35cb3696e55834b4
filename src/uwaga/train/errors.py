"""Errors of training that users can cause. The full text of each message has a test."""

from uwaga._base.errors import DataError

__all__ = ["ConfigError", "DataError", "TrainingError"]


class ConfigError(ValueError):
    """A configuration that cannot be used; the message begins with the file, and names the key."""


class TrainingError(RuntimeError):
    """A run that cannot start or continue; the message names the last good checkpoint where there is one."""
