"""The training loss: the sum of the cross-entropies of the scored tokens of a batch.

Letters: N packed tokens, S scored ones, M model width, V vocabulary.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from uwaga.models.transformer import Transformer
from uwaga.ops.attention import api
from uwaga.ops.ragged import Operand, Ragged

# Logits that are in memory at once: 256 MB in float32, and as much each for gradient and softmax.
_MOST_LOGITS = 2**26


class Objective(nn.Module):
    """A model with its loss, as one module that is distributed and compiled.

    Args:
        model: of this package.
        smoothing: label smoothing: this fraction of the target probability is uniform over all tokens (Szegedy et al. 2016).
    """

    def __init__(self, model: Transformer, smoothing: float = 0.0) -> None:
        super().__init__()
        self.model, self.smoothing = model, smoothing

    def forward(self, ids: Ragged, decoder_ids: Ragged | None, labels: Tensor, scored: Tensor | None) -> Tensor:
        """() float32, the sum over all labels.

        Args:
            ids: (N,) int64.
            decoder_ids: (N',) int64, of an encoder and a decoder.
            labels: (S,) int64.
            scored: (S,) int64: which tokens they are of; None for all, in order.
        """
        hidden_NM = self._hidden(*_lowered(ids, decoder_ids))
        hidden_SM = hidden_NM if scored is None else hidden_NM[scored]
        return cross_entropy(self.model.logits, hidden_SM, labels, self._smoothing, self.model.config.output_vocab_size)

    @property
    def _smoothing(self) -> float:
        """None in evaluation mode: the loss is then the cross-entropy of the labels."""
        return self.smoothing if self.training else 0.0

    def _hidden(self, ids: Operand, decoder_ids: Operand | None) -> Tensor:
        """(N, M): the hidden states before the head."""
        hidden = self.model(ids, decoder_ids, outputs=()).last_hidden_state
        return hidden.values if isinstance(hidden, Ragged) else hidden.flatten(0, 1)


def _lowered(ids: Ragged, decoder_ids: Ragged | None) -> tuple[Operand, Operand | None]:
    """As the model computes it fastest: rows of one length, such as windows, as a matrix, which has no padding either. In a
    graph for batches of all sizes packed, without the longest row, which would be part of it. Where several processes share the rows
    (`uwaga.sequence_parallel`), packed as they are."""
    both = (ids,) if decoder_ids is None else (ids, decoder_ids)
    if torch.compiler.is_compiling():
        lowered: list[Operand] = [Ragged(each.values, each.offsets) for each in both]
    elif api.override is None and all(len(each) * each.max_length == len(each.values) for each in both):
        lowered = [each.values.view(len(each), -1) for each in both]
    else:
        lowered = list(both)
    return lowered[0], (lowered[1] if len(lowered) > 1 else None)


def cross_entropy(
    logits: Callable[[Tensor], Tensor], hidden_SM: Tensor, labels_S: Tensor, smoothing: float, vocabulary: int
) -> Tensor:
    """() float32: the sum over the labels.

    Logits of large vocabularies are computed in blocks of tokens, and recomputed in the backward pass.
    """

    def of(hidden: Tensor, labels: Tensor) -> Tensor:
        # In float32 whatever the logits are in: the sum of V exponentials is what loses most.
        return functional.cross_entropy(logits(hidden).float(), labels, reduction="sum", label_smoothing=smoothing)

    rows = max(_MOST_LOGITS // vocabulary, 1)
    if len(labels_S) <= rows:
        return of(hidden_SM, labels_S)
    blocks = zip(hidden_SM.split(rows), labels_S.split(rows), strict=True)
    if not torch.is_grad_enabled():
        return torch.stack([of(*block) for block in blocks]).sum()
    return torch.stack([checkpoint(of, *block, use_reentrant=False) for block in blocks]).sum()
