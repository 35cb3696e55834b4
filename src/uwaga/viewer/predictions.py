"""What a model predicts of the tokens of a text that was read. Letters: T tokens, M model width, V vocabulary, P passes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from uwaga.inspect.run_text import Reading
from uwaga.models.tokenizers.token_text import token_text

if TYPE_CHECKING:
    from torch import Tensor

    from uwaga.models.model import Model

_CONTEXT = 1000  # tokens of a text from which the form of its tokenizer is seen


@dataclass(frozen=True, kw_only=True)
class Predictions:
    """What a model predicts at each of the T tokens of its last stack, computed for the tokens that are asked for."""

    kind: str  # "next": the token after each; "masked": the token at its place
    stack: str  # "encoder" or "decoder"
    states: "Tensor"  # (T, M)
    logits: "Callable[[Tensor], Tensor]"  # (n, V) from (n, M)
    reader: "Model"
    tokens: Sequence[str]

    @staticmethod
    def of(reader: "Model", reading: Reading) -> "Predictions | None":
        """Return the predictions of a reading; None for a model that predicts no tokens."""
        if reader.predicts is None:
            return None
        stack: str = "decoder" if "decoder" in reading.recording.tokens else "encoder"
        return Predictions(
            kind=reader.predicts,
            stack=stack,
            states=reading.states,
            logits=reader.logits,
            reader=reader,
            tokens=reading.recording.tokens[stack][0][:_CONTEXT],
        )

    def __len__(self) -> int:
        return len(self.states)

    def top(
        self, first: int, last: int, count: int, before: "Predictions | None" = None
    ) -> tuple[list[list[str]], NDArray[np.float32]]:
        """Return the `count` most probable tokens at each token from `first` to `last`.

        Their probabilities follow, (1, last - first, count). With `before`, the tokens are those whose larger
        probability of both is largest, and the probabilities are those here and by `before`, (2, ...).
        """
        import torch

        with torch.no_grad():
            both = [self] if before is None else [self, before]
            passes_PTV = torch.stack([side.logits(side.states[first:last]).float().softmax(-1) for side in both])
            ids = passes_PTV.amax(0).topk(count).indices
            probabilities = passes_PTV.gather(-1, ids.expand(len(both), -1, -1))
        return [self._labels(row) for row in ids.tolist()], probabilities.numpy().astype(np.float32)

    def _labels(self, ids: list[int]) -> list[str]:
        """Return tokens as text; one that continues a word begins with a hyphen if others do not."""
        backend = self.reader.target_tokenizer.backend if self.reader.config.has_both else self.reader.tokenizer.backend
        names = [backend.id_to_token(number) or f"<{number}>" for number in ids]
        shown = token_text([*self.tokens, *names])
        start = len(self.tokens)
        has_words = not all(shown.no_space_before[:start])
        return [
            f"-{label}" if has_words and continues and not special and label[:1].isalnum() else label
            for label, continues, special in zip(
                shown.labels[start:], shown.no_space_before[start:], shown.special[start:], strict=True
            )
        ]
