"""Training: from text files to a Transformer; resumable, in one process or several.

    result = uwaga.train.fit(uwaga.train.Config.read(Path("config.toml")))
    model = uwaga.models.load(result.best)

The public names; each is imported when first used.
"""

from typing import TYPE_CHECKING

from uwaga._base.lazy import names

if TYPE_CHECKING:
    from uwaga.train.api import Result, fit
    from uwaga.train.config import Config
    from uwaga.train.errors import ConfigError, DataError, TrainingError

__all__ = ["Config", "ConfigError", "DataError", "Result", "TrainingError", "fit"]

_HOME = {
    "Config": "uwaga.train.config",
    "ConfigError": "uwaga.train.errors",
    "DataError": "uwaga.train.errors",
    "Result": "uwaga.train.api",
    "TrainingError": "uwaga.train.errors",
    "fit": "uwaga.train.api",
}

__getattr__, __dir__ = names(__name__, _HOME)
