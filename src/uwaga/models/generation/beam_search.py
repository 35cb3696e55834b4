"""Beam search.

The rules by which texts are kept and rows end are those of transformers (GenerationMixin._beam_search), so that both find the
same texts. Letters: R rows, W beams of a row, C candidates of a row, V vocabulary, T new tokens.
"""

import torch
from torch import Tensor

from uwaga.models.generation.sampling import GenerationOptions
from uwaga.models.model import Decoding
from uwaga.models.tokenizers.token_ids import one_per_row
from uwaga.ops.ragged import Ragged

_NONE = -torch.inf  # the score of a beam that holds no text


class Beams:
    """The beams of R rows: running texts, and the best finished ones."""

    def __init__(self, rows: int, options: GenerationOptions, device: torch.device) -> None:
        beams = options.num_beams
        self.options, self.step = options, 0
        self.eos = torch.tensor(options.eos_token_ids, dtype=torch.int64, device=device)
        self.penalty = 1.0 if options.length_penalty is None else options.length_penalty
        self.running_RWT = torch.zeros(rows, beams, options.max_new_tokens, dtype=torch.int64, device=device)
        # All beams of a row start as the same text: only one is continued.
        self.running_score_RW = torch.full((rows, beams), _NONE, device=device)
        self.running_score_RW[:, 0] = 0.0
        self.done_RWT, self.done_score_RW = self.running_RWT.clone(), torch.full_like(self.running_score_RW, _NONE)
        self.done_length_RW = torch.zeros(rows, beams, dtype=torch.int64, device=device)

    def advance(self, logits_RWV: Tensor) -> Tensor:
        """Add one token to every beam. Returns (R, W) int64: for each new beam, the previous beam of its row that it continues."""
        beams, vocabulary = logits_RWV.shape[1:]
        score_RWV = logits_RWV.log_softmax(-1) + self.running_score_RW[..., None]
        # Enough candidates that W of them do not end, even if every end token is a candidate of every beam.
        count = min(max(2, 1 + len(self.eos)) * beams, beams * vocabulary)
        score_RC, place_RC = score_RWV.flatten(1).topk(count)
        beam_RC, token_RC = place_RC // vocabulary, place_RC % vocabulary
        text_RCT = _taken(self.running_RWT, beam_RC)
        text_RCT[:, :, self.step] = token_RC
        self.step += 1
        has_ended_RC = torch.isin(token_RC, self.eos)
        if self.step == self.options.max_new_tokens:
            has_ended_RC = torch.ones_like(has_ended_RC)
        self._keep_ended(text_RCT, score_RC, has_ended_RC)

        self.running_score_RW, chosen_RW = score_RC.masked_fill(has_ended_RC, _NONE).topk(beams)
        self.running_RWT = _taken(text_RCT, chosen_RW)
        return beam_RC.gather(1, chosen_RW)

    def _keep_ended(self, text_RCT: Tensor, score_RC: Tensor, has_ended_RC: Tensor) -> None:
        """Keep the best W of the finished texts and of those among the best W candidates that finish now."""
        beams = self.done_score_RW.shape[1]
        is_best_C = torch.arange(score_RC.shape[1], device=score_RC.device) < beams
        ended_RC = (score_RC / self.step**self.penalty).masked_fill(~(has_ended_RC & is_best_C), _NONE)
        self.done_score_RW, chosen_RW = torch.cat((self.done_score_RW, ended_RC), 1).topk(beams)
        lengths = torch.cat((self.done_length_RW, torch.full_like(score_RC, self.step, dtype=torch.int64)), 1)
        self.done_length_RW = lengths.gather(1, chosen_RW)
        self.done_RWT = _taken(torch.cat((self.done_RWT, text_RCT), 1), chosen_RW)

    def continues(self) -> Tensor:
        """(R,) bool: whether a row may still find a better text than its worst finished one."""
        is_full_R = (self.done_score_RW > _NONE).all(1)
        length = self.step
        if self.options.early_stopping == "never" and self.penalty > 0.0:
            length = self.options.max_new_tokens
        could_R = self.running_score_RW[:, 0] / length**self.penalty > self.done_score_RW.amin(1)
        if self.options.early_stopping is True:
            could_R = could_R & ~is_full_R
        return could_R if self.step < self.options.max_new_tokens else torch.zeros_like(could_R)

    def best(self) -> tuple[Tensor, Tensor]:
        """(R, T) the tokens of the best finished text of each row, and (R,) their number."""
        return self.done_RWT[:, 0], self.done_length_RW[:, 0]

    def keep(self, rows: Tensor) -> None:
        """Drop all other rows."""
        for name in ("running_RWT", "running_score_RW", "done_RWT", "done_score_RW", "done_length_RW"):
            setattr(self, name, getattr(self, name)[rows])


def beam_search(decoding: Decoding, options: GenerationOptions) -> Ragged:
    """(N,) ids: the new tokens of the best text of each row, the end token included."""
    first, cache, logits_of = decoding
    device, count, beams = first.values.device, len(first), options.num_beams
    tokens_RT = torch.zeros(count, options.max_new_tokens, dtype=torch.int64, device=device)
    length_R = torch.zeros(count, dtype=torch.int64, device=device)
    rows, result = torch.arange(count, device=device), Beams(count, options, device)
    # The prompts are read once; the first reordering of the cache copies them to the beams.
    logits_RWV, width = logits_of(first)[:, None].expand(-1, beams, -1), 1
    while True:
        beam_RW = result.advance(logits_RWV)
        continues = result.continues()
        tokens_RT[rows[~continues]], length_R[rows[~continues]] = (x[~continues] for x in result.best())
        if not bool(continues.any()):
            return Ragged.from_padded(tokens_RT, length_R)
        first_R1 = torch.arange(len(rows), device=device)[:, None] * width
        cache.reorder((first_R1 + beam_RW.clamp(max=width - 1))[continues].flatten())
        result.keep(continues)
        rows, width = rows[continues], beams
        token_R = result.running_RWT[:, :, result.step - 1].flatten()
        logits_RWV = logits_of(one_per_row(token_R)).unflatten(0, (-1, beams))


def _taken(text_RWT: Tensor, beam_RC: Tensor) -> Tensor:
    """(R, C, T): the texts of the listed beams, a copy."""
    return text_RWT.gather(1, beam_RC[..., None].expand(-1, -1, text_RWT.shape[2]))
