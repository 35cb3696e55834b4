"""One token after the other for every row. Letters: R rows, T new tokens."""

from typing import Protocol

import torch
from torch import Tensor

from uwaga.models.generation.choosing import Choose
from uwaga.models.generation.decoding import Decoding
from uwaga.models.generation.options import Options
from uwaga.ops.ragged import Ragged


class Streamer(Protocol):
    """Told of tokens as they come; transformers' TextStreamer and TextIteratorStreamer are such."""

    def put(self, value: Tensor) -> None:
        """The prompt, (T,) ids, and then every new token, (1,)."""

    def end(self) -> None:
        """There are no more."""


def run(decoding: Decoding, choose: Choose, options: Options, streamer: Streamer | None) -> Ragged:
    """(N,) ids: the new tokens of each row, the one that ends it included. A row that has ended leaves the batch."""
    device, count = decoding.first.values.device, len(decoding.first)
    ends = torch.tensor(options.ends, dtype=torch.int64, device=device)
    written_RT = torch.zeros(count, options.max_new_tokens, dtype=torch.int64, device=device)
    length_R = torch.zeros(count, dtype=torch.int64, device=device)
    rows = torch.arange(count, device=device)
    logits_RV = decoding.begin()
    for step in range(options.max_new_tokens):
        token_R = choose(logits_RV, step, rows)
        written_RT[rows, step], length_R[rows] = token_R, step + 1
        if streamer is not None:
            streamer.put(token_R.cpu())
        goes_on = ~torch.isin(token_R, ends)
        if step + 1 == options.max_new_tokens or not bool(goes_on.any()):
            break
        if not bool(goes_on.all()):
            decoding.reorder(goes_on.nonzero().squeeze(-1))
            rows, token_R = rows[goes_on], token_R[goes_on]
        logits_RV = decoding.go_on(token_R)
    if streamer is not None:
        streamer.end()
    return Ragged.from_padded(written_RT, length_R)
