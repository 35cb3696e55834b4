"""`uwaga.train.fit`: a configuration in, a trained model out; from the start or resumed. Optimizer steps, and between them metrics, evaluation,
samples and checkpoints."""

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import nn

from uwaga._base import durable
from uwaga.models.checkpoints.directories import BEST, LAST, checkpoint_of_run, read_pointer, read_pointer_name
from uwaga.models.transformer import Transformer
from uwaga.train import checkpoint as checkpoint_files
from uwaga.train.checkpoint import BestEvaluation, TrainingState, checkpoint_name, last_checkpoint_text
from uwaga.train.config import Config
from uwaga.train.corpus import Corpus, MicroBatch
from uwaga.train.errors import ConfigError, TrainingError, TrainingInterrupted
from uwaga.train.logger import METRICS_FILE, MetricsLogger, read_losses
from uwaga.train.model import model_config, new_model
from uwaga.train.parallel import World, process_group
from uwaga.train.prepare import save_tokenizers
from uwaga.train.step import StepResult, TrainableModel

_LOCK = ".lock"
_MOST_ROWS = 12  # in a message


@dataclass(frozen=True, kw_only=True)
class Result:
    """A finished training run.

    Attributes:
        steps: the number of optimizer steps.
        losses, validation_losses: by step, as logged in metrics.jsonl.
        checkpoint, best: the folders of the last checkpoint and of the one with the lowest validation loss.
    """

    steps: int
    losses: dict[int, float]
    validation_losses: dict[int, float]
    checkpoint: Path
    best: Path


def fit(config: Config, *, resume: bool = False, progress: bool = True) -> Result:
    """Train a model. Under torchrun every process calls this, and each computes a part of every step.

    Args:
        config: the model, the data and the run.
        resume: continue from the last checkpoint in run.output_dir, or start if there is none. The result is bit for bit
            the result of an uninterrupted run on the same machine.
        progress: show a progress bar and messages on standard error.

    Raises:
        ConfigError, DataError: a configuration or data that cannot be used.
        CheckpointError: a checkpoint that cannot be read, or is of another configuration.
        TrainingError: run.output_dir holds a run already; a loss or gradient is NaN or infinite; a checkpoint cannot be
            written; another process ended or did not answer within parallel.timeout (LostProcessError, with its rank).
        TrainingInterrupted: a KeyboardInterrupt. The first Ctrl-C lets the step end and writes a checkpoint, the second one stops
            at once; so in the main thread of a single process. Otherwise the first one stops at once.
    """
    out = Path(config.run.output_dir)
    with (
        _num_threads(config.run.threads),
        process_group(config.run.device, config.parallel) as world,
        torch.random.fork_rng(devices=[world.device] if world.device.type == "cuda" else []),
        world.naming_errors(out),
        ExitStack() as stack,
    ):
        checkpoint = world.on_first(lambda: _begin(out, resume, stack))
        corpus = Corpus.prepare(config, out)
        trainable, state = _model_and_state(config, corpus, world, checkpoint)
        loggers: list[MetricsLogger] = []  # of the first process alone

        def log() -> None:
            begun = start_lines(config, corpus, trainable.model, checkpoint, world)
            loggers.append(MetricsLogger(config, corpus, out, state, begun, shown=progress))
            stack.callback(loggers[0].close)

        world.on_first(log)
        steps = Loop(config, corpus, world, trainable, state, loggers[0] if loggers else None).run()
        last, best = read_pointer(out, LAST), read_pointer(out, BEST)
        assert last is not None
        assert best is not None
        losses, validation_losses = read_losses(out, "train"), read_losses(out, "validation")
    return Result(steps=steps, losses=losses, validation_losses=validation_losses, checkpoint=last, best=best)


@contextmanager
def _num_threads(threads: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    if threads is not None:
        torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _begin(out: Path, resume: bool, stack: ExitStack) -> Path | None:
    """Lock the folder of a run until the stack closes, and return the checkpoint to resume from.

    Raises TrainingError: another process trains into the folder, or the folder has a run and `resume` is False.
    """
    try:
        durable.make_folder(out)
        stack.enter_context(durable.file_lock(out / _LOCK, wait=False))
    except BlockingIOError as error:
        raise TrainingError(f"{out} is in use by another training process") from error
    except OSError as error:
        raise TrainingError(f"{error.filename}: {error.strerror}") from error
    last = read_pointer(out, LAST)
    if not resume and (last is not None or checkpoint_files.checkpoint_steps(out) or (out / METRICS_FILE).exists()):
        where = "no checkpoint yet" if last is None else f"its last checkpoint is {last.name}"
        raise TrainingError(
            f"{out} holds a run already ({where}): resume=True continues it, run.output_dir=... starts another"
        )
    read_pointer_name(out, BEST)  # a file with other text is not ours: this raises before it is replaced
    checkpoint_files.remove_leftovers(out)
    return last


def _model_and_state(
    config: Config, corpus: Corpus, world: World, checkpoint: Path | None
) -> tuple[TrainableModel, TrainingState]:
    """Return a new model and state, or a checkpoint's. Raises ConfigError, CheckpointError."""
    model = new_model(model_config(config.model, config.objective, corpus.model_settings), config.run.seed)
    state = TrainingState(step=0, tokens=0, seconds=0.0, best=None, metrics=0, seed=config.run.seed, data=corpus.digest)
    weights = checkpoint
    if checkpoint is not None:
        state = TrainingState.read(checkpoint)
        for message in _differences(checkpoint, state, config, corpus):
            raise ConfigError(message)
    elif config.run.init_from is not None:
        weights = checkpoint_of_run(Path(config.run.init_from))
    if weights is not None:
        checkpoint_files.read_model(weights, model)
    trainable = TrainableModel(model, config, world)
    if checkpoint is not None:
        trainable.optimizer.load(checkpoint, state.step)
    return trainable, state


def _differences(checkpoint: Path, state: TrainingState, config: Config, corpus: Corpus) -> Iterator[str]:
    before = Config.read(checkpoint / checkpoint_files.CONFIG)
    for name in ("objective", "model"):
        was, now = getattr(before, name), getattr(config, name)
        if was != now:
            yield f"{checkpoint} was trained with {name} {was!r}, and the configuration has {now!r}"
    if (state.seed, state.data) != (config.run.seed, corpus.digest):
        unchanged = "data, tokenizer, batch and run.seed must be unchanged"
        yield f"{checkpoint} was trained on other data, or in another order: {unchanged}"
    if state.step > config.schedule.steps:
        yield f"schedule.steps is {config.schedule.steps}, and {checkpoint} is at step {state.step}"


def start_lines(config: Config, corpus: Corpus, model: nn.Module, checkpoint: Path | None, world: World) -> list[str]:
    weights = sum(map(torch.numel, model.parameters()))
    begun = "from the start" if config.run.init_from is None else f"from the weights of {config.run.init_from}"
    where = begun if checkpoint is None else f"from {checkpoint}"
    lines = [f"{weights:,} weights, {config.schedule.steps:,} steps, {where}"]
    if (count := corpus.train.micro_batches_per_step) < world.data_size:
        setting = f"batch.tokens_per_step={world.data_size * config.batch.tokens_per_batch}"
        lines.append(
            f"a step has {count} micro-batches for {world.data_size} processes, and some processes are idle: "
            f"{setting} gives each of them one"
        )
    return lines


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

    def run(self) -> int:
        """Train to the last step, whose number is returned. Raises TrainingError, TrainingInterrupted."""
        self._trainable.objective.train()
        if self._state.step:  # a process that was killed while saving left the former pointers
            keep = self._config.run.keep_last
            self._world.on_first(lambda: checkpoint_files.update_pointers(self._out, self._state, keep))
        # Several processes would have to agree on the step after which they stop.
        one_deferred = _one_interrupt_deferred(self._tell_of_interrupt)
        try:
            with one_deferred if self._world.size == 1 else nullcontext(lambda: False) as is_interrupted:
                self._run(is_interrupted)
        except KeyboardInterrupt as error:
            if isinstance(error, TrainingInterrupted):
                raise
            raise TrainingInterrupted(self._lost()) from None
        return self._state.step

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
        """Return the message of a run that was stopped at once."""
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
        """Raise TrainingError if a step so far had a loss or gradient that is NaN or infinite. The message names the
        step and the rows of its micro-batches."""
        pending, self._pending = self._pending, []
        for result in pending:
            loss, norm = result.loss.item(), result.grad_norm.item()
            if math.isfinite(loss) and math.isfinite(norm):
                continue
            if not math.isfinite(loss):
                what = f"the loss is {loss}"
                losses = zip(result.micro_batches, result.local_losses.tolist(), strict=False)
                local = [micro_batch for micro_batch, value in losses if not math.isfinite(value)]
            else:
                what, local = f"the norm of the gradient is {norm}, and the loss {loss:.4f}", list(result.micro_batches)
            # By number: processes that share sequences have the same ones.
            micro_batches = {batch.number: batch for batches in self._world.all_gather(local) for batch in batches}
            where = "; ".join(_described(micro_batches[number]) for number in sorted(micro_batches))
            raise self._error(f"step {result.step + 1}: {what}, of {where}")

    def _error(self, message: object) -> TrainingError:
        return TrainingError(f"{message}; {last_checkpoint_text(self._out)}")

    def _log(self, result: StepResult) -> None:
        self._check_pending()
        now = time.perf_counter()
        tokens_per_second = self._tokens / max(now - self._since, 1e-9)
        self._tokens, self._since = 0, now
        if self._logger is not None:
            self._logger.log_step(self._state, result, tokens_per_second)

    def _log_model(self, log: Callable[[MetricsLogger, int, Transformer], None]) -> None:
        """Let the first process measure the whole model, while the others wait."""

        def measure() -> None:
            assert self._logger is not None
            log(self._logger, self._state.step, self._trainable.model)

        self._world.on_first(measure)

    def _evaluate(self, is_last: bool) -> bool:
        """Return whether the validation loss is the lowest so far. Raises TrainingError if it is NaN or infinite."""
        self._check_pending()
        loss = self._trainable.validation_loss(self._corpus.validation)
        if not math.isfinite(loss):
            raise self._error(f"step {self._state.step}: the validation loss is {loss}")
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

        def write() -> None:
            assert self._logger is not None
            state = replace(self._state, metrics=self._logger.sync())
            save = partial(save_tokenizers, self._corpus.tokenizers)
            model, moments = self._trainable.model, self._trainable.optimizer.state()
            try:
                checkpoint_files.write(self._out, model, moments, state, self._config.text(), save)
                checkpoint_files.update_pointers(self._out, state, self._config.run.keep_last)
            except TrainingError as error:
                raise self._error(error) from error

        self._world.on_first(write)
        self._saved = self._state.step


@contextmanager
def _one_interrupt_deferred(tell: Callable[[], None]) -> Iterator[Callable[[], bool]]:
    """Defer the first Ctrl-C inside; the second one raises KeyboardInterrupt. The first one calls `tell`, and makes the
    function that this gives return True. Without effect in other threads, and if a program has a handler of its own."""
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


def _described(micro_batch: MicroBatch) -> str:
    rows = ", ".join(map(str, micro_batch.rows[:_MOST_ROWS]))
    more = f" and {len(micro_batch.rows) - _MOST_ROWS} more" if len(micro_batch.rows) > _MOST_ROWS else ""
    return f"micro-batch {micro_batch.number} (rows {rows}{more} of epoch {micro_batch.epoch})"
