"""Assisted generation, where a model also reads tokens that it then throws away."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

from torch import nn

from uwaga.maps.recordings.passes import Segment
from uwaga.maps.recordings.recording import Recording

_HOOK = "_get_candidate_generator"  # what transformers asks a model for when an assisted generation begins


class DraftedRecording(Recording):
    """A recording that does not give drafts for a text: after an assisted generation, texts are to be named.

    transformers takes drafts back out of its cache without a pass that would tell of it, and out of a cache of a window in
    a way that joins no passes.
    """

    drafts = False  # were read, perhaps

    def _paths(self, kind: str) -> list[list[Segment]] | None:
        if kind == "decoder" and self.drafts and self._chosen is None:
            raise ValueError(
                "Recording: an assisted generation read drafts that may not be in its text; recording.of(texts) has the texts "
                "that you name, by all ids that the decoder read and wrote"
            )
        return super()._paths(kind)


@contextmanager
def noticing(model: nn.Module, recording: DraftedRecording) -> Iterator[None]:
    """Within it, the recording is told of assisted generations of transformers' models in this one."""
    models = [module for module in model.modules() if hasattr(module, _HOOK)]
    before = [vars(module).get(_HOOK) for module in models]
    for module in models:
        setattr(module, _HOOK, _telling(getattr(module, _HOOK), recording))
    try:
        yield
    finally:
        for module, other in zip(models, before, strict=True):
            delattr(module, _HOOK)
            if other is not None:
                setattr(module, _HOOK, other)


def _telling(original: Callable, recording: DraftedRecording) -> Callable:
    @wraps(original)
    def get_candidate_generator(*args: Any, **kwargs: Any) -> object:
        recording.drafts = True
        return original(*args, **kwargs)

    return get_candidate_generator
