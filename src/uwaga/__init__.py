"""uwaga: exact Transformer attention that you can run, train and look inside.

The public names; each is imported when first used, so that `import uwaga` costs nothing beyond `import torch`.
"""

from typing import TYPE_CHECKING

from uwaga._base.lazy import names

if TYPE_CHECKING:
    from uwaga._base.errors import ShapeError
    from uwaga.inspect.editing import edit
    from uwaga.inspect.edits import Edits, Links, Patch
    from uwaga.inspect.recordings.recording import Recording
    from uwaga.inspect.watching import watch
    from uwaga.maps.attended import attend
    from uwaga.maps.map import AttentionMap
    from uwaga.models.text.encoder import TextEncoder
    from uwaga.models.text.reranker import Reranker
    from uwaga.ops.attention.api import attention, explain
    from uwaga.ops.biases import AlibiBias, RelativeBias
    from uwaga.ops.linear.api import linear
    from uwaga.ops.masks import Causal, Documents, KeyLengths, Window
    from uwaga.ops.maxsim import maxsim
    from uwaga.ops.ragged import Ragged
    from uwaga.store.database import SoftDatabase
    from uwaga.viewer.api import view
    from uwaga.viewer.lesson import lesson

__version__ = "0.1.0"

__all__ = [
    "AlibiBias",
    "AttentionMap",
    "Causal",
    "Documents",
    "Edits",
    "KeyLengths",
    "Links",
    "Patch",
    "Ragged",
    "Recording",
    "RelativeBias",
    "Reranker",
    "ShapeError",
    "SoftDatabase",
    "TextEncoder",
    "Window",
    "__version__",
    "attend",
    "attention",
    "edit",
    "explain",
    "lesson",
    "linear",
    "maxsim",
    "view",
    "watch",
]

_HOME = {
    "AlibiBias": "uwaga.ops.biases",
    "AttentionMap": "uwaga.maps.map",
    "Causal": "uwaga.ops.masks",
    "Documents": "uwaga.ops.masks",
    "Edits": "uwaga.inspect.edits",
    "KeyLengths": "uwaga.ops.masks",
    "Links": "uwaga.inspect.edits",
    "Patch": "uwaga.inspect.edits",
    "Ragged": "uwaga.ops.ragged",
    "Recording": "uwaga.inspect.recordings.recording",
    "RelativeBias": "uwaga.ops.biases",
    "Reranker": "uwaga.models.text.reranker",
    "ShapeError": "uwaga._base.errors",
    "SoftDatabase": "uwaga.store.database",
    "TextEncoder": "uwaga.models.text.encoder",
    "Window": "uwaga.ops.masks",
    "attend": "uwaga.maps.attended",
    "attention": "uwaga.ops.attention.api",
    "edit": "uwaga.inspect.editing",
    "explain": "uwaga.ops.attention.api",
    "lesson": "uwaga.viewer.lesson",
    "linear": "uwaga.ops.linear.api",
    "maxsim": "uwaga.ops.maxsim",
    "view": "uwaga.viewer.api",
    "watch": "uwaga.inspect.watching",
}

__getattr__, _names = names(
    __name__,
    _HOME,
    (
        "corpora",
        "inspect",
        "integrations",
        "lessons",
        "maps",
        "models",
        "nn",
        "plots",
        "sequence_parallel",
        "store",
        "train",
        "viewer",
    ),
)


def __dir__() -> list[str]:
    return sorted([*_names(), "__version__"])
