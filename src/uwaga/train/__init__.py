"""Training: from text files to a Transformer; resumable, in one process or several.

    result = uwaga.train.fit(uwaga.train.Config.read(Path("config.toml")))
    model = uwaga.models.load(result.best)

The public names; each is imported when first used.
"""

from typing import TYPE_CHECKING

from uwaga._base.lazy import names

if TYPE_CHECKING:
    from uwaga.train.api import Result as Result
    from uwaga.train.api import fit as fit
    from uwaga.train.config import Config as Config
    from uwaga.train.errors import ConfigError as ConfigError
    from uwaga.train.errors import DataError as DataError
    from uwaga.train.errors import TrainingError as TrainingError
else:
    __all__, __getattr__, __dir__ = names(__name__)
