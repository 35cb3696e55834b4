"""Activations by the names that transformers has for them."""

from uwaga.models.settings import one_of

# Their names; the first of those with one meaning is the one that is written.
_THEIRS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
ACTIVATION = one_of(*_THEIRS)


def read_activation(theirs: str) -> str:
    """
    >>> read_activation("swish")
    'silu'
    """
    return _THEIRS[theirs]


def write_activation(ours: str) -> str:
    """
    >>> write_activation("gelu_tanh")
    'gelu_new'
    """
    return next(theirs for theirs, name in _THEIRS.items() if name == ours)
