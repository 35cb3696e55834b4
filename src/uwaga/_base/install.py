"""How what is missing is installed."""

import sys
from importlib import import_module
from types import ModuleType

# PyPI's builds for Linux come with CUDA; those for macOS and Windows are for the CPU.
_CPU_TORCH = "pip install torch --index-url https://download.pytorch.org/whl/cpu"


def torch_command() -> str:
    """Return the command that installs PyTorch for the CPU on this system."""
    return _CPU_TORCH if sys.platform == "linux" else "pip install torch"


def missing(error: ModuleNotFoundError, extra: str) -> str:
    """Return the name of a missing package and the command that installs it: an extra, or PyTorch's own."""
    if error.name == "torch":
        on_gpu = "; with an NVIDIA GPU: pip install torch" if sys.platform == "linux" else ""
        return f"needs PyTorch, which is not installed: {torch_command()}{on_gpu}"
    return f"needs {error.name}: pip install 'uwaga[{extra}]'"


def optional(module: str, package: str, rule: str) -> ModuleType:
    """Import a module that needs a package which may be missing. Raises ModuleNotFoundError, with the text `rule`, if it is."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != package:
            raise
        raise ModuleNotFoundError(rule, name=package) from error
