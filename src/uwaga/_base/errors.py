"""The errors that users see. Their texts are part of the interface: each has a test of its full text."""


class ShapeError(ValueError):
    """Tensors that do not fit together.

    The message names the operation, states the broken rule in words, and lists every tensor with the letters that its
    shape bound; an arrow marks the culprit:

        attention: key and query disagree on head width D
          query  (2, 12, 128, 64)   B=2  H=12 Q=128 D=64
          key    (2, 12, 512, 80)   B=2  G=12 K=512 D=80   <- D was 64 from query
    """


class CheckpointError(ValueError):
    """A model directory that cannot be loaded: the message names the file, and every weight that is wrong."""


class UnsupportedModelError(CheckpointError):
    """A model directory that the tables of `uwaga.models` do not read; transformers may."""


class OwnCodeError(CheckpointError):
    """A model directory whose model is of code of its own: a class of transformers would compute something else from it."""


class ConfigError(ValueError):
    """A configuration of training that cannot be used; the message begins with the file, and names the key."""


class DataError(ValueError):
    """Texts or training data that cannot be read; the message begins with the file, and the line or row where there is one."""


class SoftDatabaseError(ValueError):
    """A soft database that cannot be opened, read or written; the message names the file, and the rows where there are some."""
