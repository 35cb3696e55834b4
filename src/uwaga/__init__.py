"""uwaga: exact Transformer attention that you can run, train and look inside.

The public names; each is imported when first used, so that `import uwaga` costs nothing beyond `import torch`.
"""

from typing import TYPE_CHECKING

from uwaga._base.lazy import names

__version__ = "0.1.0"

if TYPE_CHECKING:
    from uwaga import encode as encode
    from uwaga import inspect as inspect
    from uwaga import integrations as integrations
    from uwaga import lessons as lessons
    from uwaga import maps as maps
    from uwaga import models as models
    from uwaga import nn as nn
    from uwaga import plots as plots
    from uwaga import sequence_parallel as sequence_parallel
    from uwaga import store as store
    from uwaga import train as train
    from uwaga import viewer as viewer
    from uwaga._base.errors import ShapeError as ShapeError
    from uwaga.encode.encoder import TextEncoder as TextEncoder
    from uwaga.encode.reranker import Reranker as Reranker
    from uwaga.inspect.editing import edit as edit
    from uwaga.inspect.edits import Edits as Edits
    from uwaga.inspect.edits import Links as Links
    from uwaga.inspect.edits import Patch as Patch
    from uwaga.inspect.recordings.recording import Recording as Recording
    from uwaga.inspect.watching import watch as watch
    from uwaga.maps.attended import attend as attend
    from uwaga.maps.map import AttentionMap as AttentionMap
    from uwaga.ops.attention.api import attention as attention
    from uwaga.ops.attention.api import explain as explain
    from uwaga.ops.biases import AlibiBias as AlibiBias
    from uwaga.ops.biases import RelativeBias as RelativeBias
    from uwaga.ops.linear.api import linear as linear
    from uwaga.ops.masks import Causal as Causal
    from uwaga.ops.masks import Documents as Documents
    from uwaga.ops.masks import KeyLengths as KeyLengths
    from uwaga.ops.masks import Window as Window
    from uwaga.ops.maxsim import maxsim as maxsim
    from uwaga.ops.ragged import Ragged as Ragged
    from uwaga.store.database import SoftDatabase as SoftDatabase
    from uwaga.viewer.api import view as view
    from uwaga.viewer.lesson import lesson as lesson
else:
    __all__, __getattr__, __dir__ = names(__name__, "__version__")
