"""The training loop: optimizer steps, and between them metrics, evaluation, samples and checkpoints."""

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from uwaga.models.transformer import Transformer
from uwaga.train import checkpoint
from uwaga.train.checkpoint import BestEvaluation, TrainingState, checkpoint_name, last_checkpoint_text
from uwaga.train.config import Config
from uwaga.train.corpus import Corpus, MicroBatch
from uwaga.train.errors import TrainingError, TrainingInterrupted
from uwaga.train.evaluation import validation_loss
from uwaga.train.logger import MetricsLogger
from uwaga.train.parallel import World
from uwaga.train.prepare import save_tokenizers
from uwaga.train.step import StepResult, TrainableModel

_MOST_ROWS = 12  # in a message


class Loop:
    """A training run from its present state to its end.

    Args:
        config, corpus, world: of the training run.
        trainable: the model and its optimizer.
        state: where the run is.
        logger: of the metrics; None in all processes but the first.
    """

    def __init__(
        self,
        config: Config,
        corpus: Corpus,
        world: World,
        trainable: TrainableModel,
        state: TrainingState,
        logger: MetricsLogger | None,
    ) -> None:
        self._config, self._corpus, self._world = config, corpus, world
        self._trainable, self._state, self._logger = trainable, state, logger
        self._out = Path(config.run.output_dir)
        self._pending: list[StepResult] = []  # steps whose loss was not checked yet
        self._tokens, self._since = 0, time.perf_counter()  # since the last line of metrics
        self._saved = state.step  # of the last checkpoint; 0: there is none

    def run(self) -> TrainingState:
        """Train to the last step. Raises TrainingError, TrainingInterrupted."""
        self._trainable.module.train()
        if self._state.step:  # a process that was killed while saving left the former pointers
            self._world.on_first(lambda: checkpoint.update_pointers(self._out, self._state, self._config.run.keep_last))
        try:
            # Several processes would have to agree on the step after which they stop.
            with (
                _one_interrupt_deferred(self._tell_of_interrupt)
                if self._world.size == 1
                else _none_deferred() as wanted
            ):
                self._run(wanted)
        except TrainingInterrupted:
            raise
        except KeyboardInterrupt:
            raise TrainingInterrupted(self._lost()) from None
        return self._state

    def _run(self, is_interrupted: Callable[[], bool]) -> None:
        run, total = self._config.run, self._config.schedule.steps
        while self._state.step < total:
            result = self._step()
            done, is_last = self._state.step, self._state.step == total
            if done % run.log_every == 0 or is_last:
                self._log(result)
            if run.attention_every and done % run.attention_every == 0:
                self._log_model(MetricsLogger.log_attention)
            is_better = (done % run.eval_every == 0 or is_last) and self._evaluate(is_last)
            if run.sample_every and done % run.sample_every == 0:
                self._log_model(MetricsLogger.log_samples)
            if done % (run.save_every or run.eval_every) == 0 or is_better or is_last:
                self._save()
            if is_interrupted() and not is_last:
                if self._saved != done:
                    self._save()
                where = self._out / checkpoint_name(done)
                raise TrainingInterrupted(
                    f"stopped at step {done:,}: {where} has it all, and resume=True continues from it"
                )

    def _tell_of_interrupt(self) -> None:
        if self._logger is not None:
            self._logger.message(
                f"Ctrl-C: step {self._state.step + 1:,} is the last one, and a checkpoint is written after it. "
                f"Ctrl-C again stops at once: {self._state.step - self._saved:,} steps would be lost"
            )

    def _lost(self) -> str:
        """The message of a run that was stopped at once."""
        count = self._state.step - self._saved
        lost = f"{count:,} step{' is' if count == 1 else 's are'} lost" if count else "nothing is lost"
        if not self._saved:
            return f"stopped at once after step {self._state.step:,}, before the first checkpoint: {lost}; resume=True starts again"
        where = self._out / checkpoint_name(self._saved)
        return f"stopped at once after step {self._state.step:,}: {lost}; resume=True continues from {where}"

    def _step(self) -> StepResult:
        began = time.perf_counter()
        result = self._trainable.step(self._state.step, self._corpus.train)
        self._pending.append(result)
        # On a GPU, reading a number waits for the device: there, losses are checked with the next metrics.
        if self._world.device.type == "cpu":
            self._check_pending()
        self._tokens += result.tokens
        tokens, seconds = self._state.tokens + result.tokens, self._state.seconds + time.perf_counter() - began
        self._state = replace(self._state, step=result.step + 1, tokens=tokens, seconds=seconds)
        return result

    def _check_pending(self) -> None:
        """Raises TrainingError: a step so far had a loss or a gradient that is NaN or infinite."""
        pending, self._pending = self._pending, []
        check_finite(pending, self._world, self._out)

    def _log(self, result: StepResult) -> None:
        self._check_pending()
        now = time.perf_counter()
        tokens_per_second = self._tokens / max(now - self._since, 1e-9)
        self._tokens, self._since = 0, now
        if self._logger is not None:
            self._logger.log_step(self._state, result, tokens_per_second)

    def _log_model(self, log: Callable[[MetricsLogger, int, Transformer], None]) -> None:
        """What the first process measures of the whole model, while the others wait."""
        model = self._trainable.full_model()

        def measure() -> None:
            assert model is not None
            assert self._logger is not None
            log(self._logger, self._state.step, model)

        self._world.on_first(measure)

    def _evaluate(self, is_last: bool) -> bool:
        """Whether the validation loss is the lowest so far. Raises TrainingError: it is NaN or infinite."""
        self._check_pending()
        objective, data, tokens = self._trainable.objective, self._corpus.validation, self._config.run.eval_tokens
        loss = validation_loss(objective, data, tokens, self._world, self._trainable.autocast)
        if not math.isfinite(loss):
            what = f"step {self._state.step}: the validation loss is {loss}"
            raise TrainingError(f"{what}; {last_checkpoint_text(self._out)}")
        is_better = self._state.best is None or loss < self._state.best.loss
        if is_better:
            self._state = replace(self._state, best=BestEvaluation(step=self._state.step, loss=loss))
        if self._logger is not None:
            self._logger.log_validation(self._state.step, loss, is_better)
        if self._config.objective == "encoder-decoder":
            self._log_model(partial(MetricsLogger.log_error_rates, all=is_last))
        return is_better

    def _save(self) -> None:
        """Write a checkpoint. Raises TrainingError, which names the last good one."""
        self._check_pending()
        model, moments = (
            self._trainable.full_model(),
            self._trainable.optimizer.state(wanted=self._world.is_first),
        )

        def write() -> None:
            assert model is not None
            assert self._logger is not None
            state = replace(self._state, metrics=self._logger.sync())
            save = partial(save_tokenizers, self._corpus.tokenizers)
            try:
                checkpoint.write(self._out, model, moments, state, self._config.text(), save)
                checkpoint.update_pointers(self._out, state, self._config.run.keep_last)
            except TrainingError as error:
                raise TrainingError(f"{error}; {last_checkpoint_text(self._out)}") from error

        self._world.on_first(write)
        self._saved = self._state.step


@contextmanager
def _one_interrupt_deferred(tell: Callable[[], None]) -> Iterator[Callable[[], bool]]:
    """Ctrl-C inside does nothing the first time but to call `tell`, and to make the function that this gives return True; the second
    time it raises KeyboardInterrupt. Without effect in other threads, and where a program has a handler of its own.
    """
    came = False

    def on_interrupt(number: int, frame: object) -> None:
        nonlocal came
        if came:
            raise KeyboardInterrupt
        came = True
        with suppress(RuntimeError):  # the interrupt came while something else was being printed
            tell()

    is_ours = threading.current_thread() is threading.main_thread()
    is_ours = is_ours and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_ours:
        signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield lambda: came
    finally:
        if is_ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def _none_deferred() -> Iterator[Callable[[], bool]]:
    yield lambda: False


def check_finite(pending: Sequence[StepResult], world: World, out: Path) -> None:
    """Losses and gradients of these steps are finite. All processes must call this.

    Raises:
        TrainingError: a loss or the norm of a gradient is NaN or infinite; the message names the step, the rows that it was
            computed of, and the last good checkpoint.
    """
    for result in pending:
        loss, norm = result.loss.item(), result.grad_norm.item()
        if math.isfinite(loss) and math.isfinite(norm):
            continue
        if not math.isfinite(loss):
            what = f"the loss is {loss}"
            losses = zip(result.micro_batches, result.local_losses.tolist(), strict=False)
            local = [micro_batch for micro_batch, each in losses if not math.isfinite(each)]
        else:
            what, local = f"the norm of the gradient is {norm}, and the loss {loss:.4f}", list(result.micro_batches)
        # By number: processes that share sequences have the same ones.
        micro_batches = {micro_batch.number: micro_batch for each in world.all_gather(local) for micro_batch in each}
        where = "; ".join(_described(micro_batches[number]) for number in sorted(micro_batches))
        raise TrainingError(f"step {result.step + 1}: {what}, of {where}; {last_checkpoint_text(out)}")


def _described(micro_batch: MicroBatch) -> str:
    rows = ", ".join(map(str, micro_batch.rows[:_MOST_ROWS]))
    more = f" and {len(micro_batch.rows) - _MOST_ROWS} more" if len(micro_batch.rows) > _MOST_ROWS else ""
    return f"micro-batch {micro_batch.number} (rows {rows}{more} of epoch {micro_batch.epoch})"
