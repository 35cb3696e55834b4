"""Errors of training that users can cause. The full text of each message has a test."""

from uwaga._base.errors import ConfigError as ConfigError
from uwaga._base.errors import DataError as DataError


class TrainingError(RuntimeError):
    """A run that cannot start or continue; the message names the last good checkpoint if there is one."""


class LostProcessError(TrainingError):
    """Another process of a run ended, or did not answer within parallel.timeout; the message has its rank."""


class TrainingInterrupted(KeyboardInterrupt):
    """A run that was stopped by Ctrl-C; the message says from which checkpoint it can be resumed, and what is lost."""
