"""uwaga: exact Transformer attention that you can run, train and look inside.

The public names; each is imported when first used, so that `import uwaga` costs nothing beyond `import torch`.
"""

from typing import TYPE_CHECKING

from uwaga._base.lazy import names

if TYPE_CHECKING:
    from uwaga._base.errors import ShapeError
    from uwaga.integrations.edit import edit
    from uwaga.integrations.view_text import view
    from uwaga.integrations.watch import watch
    from uwaga.maps.attended import attend
    from uwaga.maps.map import AttentionMap
    from uwaga.maps.recordings.recording import Recording
    from uwaga.memory.database import SoftDatabase
    from uwaga.models.text.encoder import TextEncoder
    from uwaga.nn.edits import Edits, Links, Patch
    from uwaga.ops.attention.api import attention, explain
    from uwaga.ops.biases import AlibiBias, RelativeBias
    from uwaga.ops.linear.api import linear
    from uwaga.ops.masks import Causal, Documents, KeyLengths, Window
    from uwaga.ops.ragged import Ragged
    from uwaga.viewer.lesson.api import lesson

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
    "view",
    "watch",
]

_HOME = {
    "AlibiBias": "uwaga.ops.biases",
    "AttentionMap": "uwaga.maps.map",
    "Causal": "uwaga.ops.masks",
    "Documents": "uwaga.ops.masks",
    "Edits": "uwaga.nn.edits",
    "KeyLengths": "uwaga.ops.masks",
    "Links": "uwaga.nn.edits",
    "Patch": "uwaga.nn.edits",
    "Ragged": "uwaga.ops.ragged",
    "Recording": "uwaga.maps.recordings.recording",
    "RelativeBias": "uwaga.ops.biases",
    "ShapeError": "uwaga._base.errors",
    "SoftDatabase": "uwaga.memory.database",
    "TextEncoder": "uwaga.models.text.encoder",
    "Window": "uwaga.ops.masks",
    "attend": "uwaga.maps.attended",
    "attention": "uwaga.ops.attention.api",
    "edit": "uwaga.integrations.edit",
    "explain": "uwaga.ops.attention.api",
    "lesson": "uwaga.viewer.lesson.api",
    "linear": "uwaga.ops.linear.api",
    "view": "uwaga.integrations.view_text",
    "watch": "uwaga.integrations.watch",
}

__getattr__, _names = names(
    __name__,
    _HOME,
    ("distributed", "integrations", "interpret", "maps", "memory", "models", "nn", "plots", "train", "viewer"),
)


def __dir__() -> list[str]:
    return sorted([*_names(), "__version__"])
