"""The linear map, residual + f(x W^T + b). Read in this order: api, choose, autograd, engines."""

from importlib import import_module


def __getattr__(name: str) -> object:
    if name not in ("explain", "linear"):
        raise AttributeError(f"module 'uwaga.ops.linear' has no attribute {name!r}")
    return getattr(import_module("uwaga.ops.linear.api"), name)
