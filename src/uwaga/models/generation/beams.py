"""Beam search: the most probable texts found, several followed at once.

Which texts are kept and when a row ends is as in transformers, so that both find the same ones. Letters: R rows, W beams of a
row, C candidates of a row, V vocabulary, T new tokens.
"""

import torch
from torch import Tensor

from uwaga.models.generation.decoding import Decoding
from uwaga.models.generation.options import Options
from uwaga.ops.ragged import Ragged

_NONE = -torch.inf  # the score of a place where no text stands


class Beams:
    """The texts of R rows: those that are followed, and the best that have ended."""

    def __init__(self, rows: int, options: Options, device: torch.device) -> None:
        beams = options.num_beams
        self.options, self.step = options, 0
        self.ends = torch.tensor(options.ends, dtype=torch.int64, device=device)
        self.penalty = 1.0 if options.length_penalty is None else options.length_penalty
        self.running_RWT = torch.zeros(rows, beams, options.max_new_tokens, dtype=torch.int64, device=device)
        # All beams of a row start as the same text: one is followed.
        self.running_score_RW = torch.full((rows, beams), _NONE, device=device)
        self.running_score_RW[:, 0] = 0.0
        self.done_RWT, self.done_score_RW = self.running_RWT.clone(), torch.full_like(self.running_score_RW, _NONE)
        self.done_length_RW = torch.zeros(rows, beams, dtype=torch.int64, device=device)

    def advance(self, logits_RWV: Tensor) -> Tensor:
        """One more token for every beam; (R, W), which beam of its row each is now the continuation of."""
        beams, vocabulary = logits_RWV.shape[1:]
        score_RWV = logits_RWV.log_softmax(-1) + self.running_score_RW[..., None]
        # So many that enough of them go on, even if each end follows each beam.
        count = min(max(2, 1 + len(self.ends)) * beams, beams * vocabulary)
        score_RC, place_RC = score_RWV.flatten(1).topk(count)
        beam_RC, token_RC = place_RC // vocabulary, place_RC % vocabulary
        text_RCT = _taken(self.running_RWT, beam_RC)
        text_RCT[:, :, self.step] = token_RC
        self.step += 1
        has_ended_RC = torch.isin(token_RC, self.ends)
        if self.step == self.options.max_new_tokens:
            has_ended_RC = torch.ones_like(has_ended_RC)
        self._keep_ended(text_RCT, score_RC, has_ended_RC)

        self.running_score_RW, chosen_RW = score_RC.masked_fill(has_ended_RC, _NONE).topk(beams)
        self.running_RWT = _taken(text_RCT, chosen_RW)
        return beam_RC.gather(1, chosen_RW)

    def _keep_ended(self, text_RCT: Tensor, score_RC: Tensor, has_ended_RC: Tensor) -> None:
        """The best W of the texts that had ended, and those of the W best candidates that do now."""
        beams = self.done_score_RW.shape[1]
        is_best_C = torch.arange(score_RC.shape[1], device=score_RC.device) < beams
        ended_RC = (score_RC / self.step**self.penalty).masked_fill(~(has_ended_RC & is_best_C), _NONE)
        self.done_score_RW, chosen_RW = torch.cat((self.done_score_RW, ended_RC), 1).topk(beams)
        lengths = torch.cat((self.done_length_RW, torch.full_like(score_RC, self.step, dtype=torch.int64)), 1)
        self.done_length_RW = lengths.gather(1, chosen_RW)
        self.done_RWT = _taken(torch.cat((self.done_RWT, text_RCT), 1), chosen_RW)

    def goes_on(self) -> Tensor:
        """(R,) bool: which rows may still find a better text than the worst that is kept."""
        is_full_R = (self.done_score_RW > _NONE).all(1)
        length = self.step
        if self.options.early_stopping == "never" and self.penalty > 0.0:
            length = self.options.max_new_tokens
        could_R = self.running_score_RW[:, 0] / length**self.penalty > self.done_score_RW.amin(1)
        if self.options.early_stopping is True:
            could_R = could_R & ~is_full_R
        return could_R if self.step < self.options.max_new_tokens else torch.zeros_like(could_R)

    def best(self) -> tuple[Tensor, Tensor]:
        """(R, T) tokens of the best text of each row that has ended, and (R,) how many they are."""
        return self.done_RWT[:, 0], self.done_length_RW[:, 0]

    def keep(self, rows: Tensor) -> None:
        """Only these rows."""
        for name in ("running_RWT", "running_score_RW", "done_RWT", "done_score_RW", "done_length_RW"):
            setattr(self, name, getattr(self, name)[rows])


def search(decoding: Decoding, options: Options) -> Ragged:
    """(N,) ids: the tokens of the best text of each row, the one that ends it included."""
    device, count, beams = decoding.first.values.device, len(decoding.first), options.num_beams
    written_RT = torch.zeros(count, options.max_new_tokens, dtype=torch.int64, device=device)
    length_R = torch.zeros(count, dtype=torch.int64, device=device)
    rows, found = torch.arange(count, device=device), Beams(count, options, device)
    # The prompts are read once; what is known of them is shared out to the beams by the first reordering.
    logits_RWV, width = decoding.begin()[:, None].expand(-1, beams, -1), 1
    while True:
        beam_RW = found.advance(logits_RWV)
        goes_on = found.goes_on()
        written_RT[rows[~goes_on]], length_R[rows[~goes_on]] = (x[~goes_on] for x in found.best())
        if not bool(goes_on.any()):
            return Ragged.from_padded(written_RT, length_R)
        first_R1 = torch.arange(len(rows), device=device)[:, None] * width
        decoding.reorder((first_R1 + beam_RW.clamp(max=width - 1))[goes_on].flatten())
        found.keep(goes_on)
        rows, width = rows[goes_on], beams
        logits_RWV = decoding.go_on(found.running_RWT[:, :, found.step - 1].flatten()).unflatten(0, (-1, beams))


def _taken(text_RWT: Tensor, beam_RC: Tensor) -> Tensor:
    """(R, C, T): the texts of the listed beams, a copy."""
    return text_RWT.gather(1, beam_RC[..., None].expand(-1, -1, text_RWT.shape[2]))
