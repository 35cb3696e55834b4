"""Tells what happens in a training: metrics.jsonl, TensorBoard and the screen. Only the first process has one."""

from torch import nn

from uwaga.train.checkpoints.state import State
from uwaga.train.data.batch import Batch
from uwaga.train.metrics import attention
from uwaga.train.metrics.board import Board
from uwaga.train.metrics.errors import Questioner
from uwaga.train.metrics.journal import Journal
from uwaga.train.metrics.samples import Sampler, shown
from uwaga.train.metrics.screen import Screen
from uwaga.train.step import Taken


class Teller:
    """Where everything goes.

    Args:
        journal: metrics.jsonl.
        board: TensorBoard; None: it is not asked for.
        screen: what people see.
        sampler: writes samples.
        questioner: asks for answers, of pairs; else None.
        batch: what attention is looked at on.
    """

    def __init__(
        self,
        journal: Journal,
        board: Board | None,
        screen: Screen,
        sampler: Sampler,
        questioner: Questioner | None,
        batch: Batch,
    ) -> None:
        self._journal, self._board, self._screen = journal, board, screen
        self._sampler, self._questioner, self._batch = sampler, questioner, batch

    def trained(self, state: State, taken: Taken, rate: float) -> None:
        """A step; rate: tokens per second."""
        loss, norm = taken.loss.item(), taken.norm.item()
        found = {"loss": loss, "lr": taken.rate, "grad_norm": norm, "tokens": state.tokens}
        wall = {"seconds": round(state.seconds, 3), "tokens_per_second": round(rate, 1)}
        self._journal.write(state.step, "train", found, wall)
        self._scalars(state.step, {"train/loss": loss, "train/lr": taken.rate, "train/grad_norm": norm})
        self._screen.step(state.step, loss, rate)

    def evaluated(self, step: int, loss: float, is_better: bool) -> None:
        self._journal.write(step, "validation", {"loss": loss})
        self._scalars(step, {"validation/loss": loss})
        self._screen.line(f"step {step:,}: validation loss {loss:.4f}{', the best so far' if is_better else ''}")

    def answered(self, step: int, model: nn.Module, *, all: bool) -> None:
        """Of pairs: how often a whole model is wrong."""
        if self._questioner is None:
            return
        found = self._questioner.rates(model, all=all)
        phoneme, word = found.rates
        self._journal.write(
            step, "error_rates", {"phoneme_error_rate": phoneme, "word_error_rate": word, "words": found.questions}
        )
        self._scalars(step, {"error_rates/phoneme": phoneme, "error_rates/word": word})
        self._screen.line(
            f"step {step:,}: phoneme error {100 * phoneme:.2f} %, word error {100 * word:.2f} % of {found.questions:,} words"
        )

    def sampled(self, step: int, model: nn.Module) -> None:
        for sample in self._sampler.samples(model):
            self._journal.write(step, "sample", {"prompt": sample.prompt, "text": sample.text})
            self._screen.line(f"step {step:,}: {shown(sample)}")

    def looked(self, step: int, model: nn.Module) -> None:
        looks = attention.look(model, attention.fixed(self._batch))
        self._journal.write(step, "attention", {"heads": looks.line()})
        for each in looks.looks:
            for name in ("entropy", "normalized_entropy", "sink"):
                values = getattr(each, name)
                self._scalars(step, {f"{name}/{each.name}.{head}": value for head, value in enumerate(values)})
        self._screen.line(f"step {step:,}: {looks.said()}")

    def sync(self) -> int:
        """All lines are on the disk: so many bytes."""
        return self._journal.sync()

    def close(self) -> None:
        self._journal.close()
        if self._board is not None:
            self._board.close()

    def _scalars(self, step: int, numbers: dict[str, float]) -> None:
        if self._board is not None:
            self._board.write(step, numbers)
