"""The loop: steps, and between them metrics, evaluation, samples and checkpoints."""

import math
import time
from dataclasses import replace
from pathlib import Path

from uwaga.train import guard
from uwaga.train.checkpoints import files, folders
from uwaga.train.checkpoints.files import Parts
from uwaga.train.checkpoints.state import Best, State
from uwaga.train.config import Config
from uwaga.train.data.corpus import Corpus
from uwaga.train.distributed import World
from uwaga.train.errors import TrainingError
from uwaga.train.learner import Learner
from uwaga.train.metrics.evaluation import validation_loss
from uwaga.train.metrics.teller import Teller
from uwaga.train.step import Steps, Taken


class Loop:
    """A training from where it is to its end.

    Args:
        config, corpus, world: what is trained, on what, and by whom.
        learner: the model and its optimizer.
        state: where it is.
        teller: who is told; None in all processes but the first.
    """

    def __init__(
        self, config: Config, corpus: Corpus, world: World, learner: Learner, state: State, teller: Teller | None
    ) -> None:
        self._config, self._corpus, self._world = config, corpus, world
        self._learner, self._state, self._teller = learner, state, teller
        self._out = Path(config.run.output_dir)
        self._steps = Steps(learner.module, learner.optimizer, corpus.train, config, world)
        self._pending: list[Taken] = []  # steps whose loss nobody has looked at
        self._tokens, self._since = 0, time.perf_counter()  # since the last line of metrics

    def run(self) -> State:
        """Raises TrainingError."""
        run, total = self._config.run, self._config.schedule.steps
        self._learner.module.train()
        if self._state.step:  # whoever was killed while saving left the names of before
            self._world.first(self._point)
        while self._state.step < total:
            taken = self._take()
            done, is_last = self._state.step, self._state.step == total
            if done % run.log_every == 0 or is_last:
                self._log(taken)
            if run.attention_every and done % run.attention_every == 0:
                self._look()
            is_better = (done % run.eval_every == 0 or is_last) and self._evaluate(is_last)
            if run.sample_every and done % run.sample_every == 0:
                self._sample()
            if done % (run.save_every or run.eval_every) == 0 or is_better or is_last:
                self._save()
        return self._state

    def _take(self) -> Taken:
        began = time.perf_counter()
        taken = self._steps.take(self._state.step)
        self._pending.append(taken)
        # Where reading a number waits for the device, it is read with the next metrics.
        if self._world.device.type == "cpu":
            self._settle()
        self._tokens += taken.tokens
        tokens, seconds = self._state.tokens + taken.tokens, self._state.seconds + time.perf_counter() - began
        self._state = replace(self._state, step=taken.step + 1, tokens=tokens, seconds=seconds)
        return taken

    def _settle(self) -> None:
        """Every step so far had a loss and a gradient that are numbers. Raises TrainingError."""
        pending, self._pending = self._pending, []
        guard.check(pending, self._world, self._out)

    def _log(self, taken: Taken) -> None:
        self._settle()
        now = time.perf_counter()
        rate = self._tokens / max(now - self._since, 1e-9)
        self._tokens, self._since = 0, now
        if self._teller is not None:
            self._teller.trained(self._state, taken, rate)

    def _look(self) -> None:
        model = self._learner.whole()
        if model is not None and self._teller is not None:
            self._teller.looked(self._state.step, model)

    def _evaluate(self, is_last: bool) -> bool:
        """Whether it is the best so far. Raises TrainingError."""
        self._settle()
        objective, data, tokens = self._learner.objective, self._corpus.validation, self._config.run.eval_tokens
        loss = validation_loss(objective, data, tokens, self._world, self._steps.arithmetic)
        if not math.isfinite(loss):
            said = f"step {self._state.step}: the validation loss is {loss}"
            raise TrainingError(f"{said}; {guard.last_good(self._out)}")
        is_better = self._state.best is None or loss < self._state.best.loss
        if is_better:
            self._state = replace(self._state, best=Best(step=self._state.step, loss=loss))
        if self._teller is not None:
            self._teller.evaluated(self._state.step, loss, is_better)
        if self._config.objective == "encoder-decoder":
            model = self._learner.whole()
            if model is not None and self._teller is not None:
                self._teller.answered(self._state.step, model, all=is_last)
        return is_better

    def _sample(self) -> None:
        model = self._learner.whole()
        if model is not None and self._teller is not None:
            self._teller.sampled(self._state.step, model)

    def _save(self) -> None:
        """Raises TrainingError, which names the last good checkpoint."""
        self._settle()
        model, moments = self._learner.whole(), self._learner.optimizer.state(wanted=self._world.is_first)

        def write() -> None:
            assert model is not None
            assert self._teller is not None
            state = replace(self._state, metrics=self._teller.sync())
            parts = Parts(model, moments, state, self._config.text(), self._corpus.save_tokenizers)
            try:
                files.write(self._out, parts)
                self._point()
            except TrainingError as error:
                raise TrainingError(f"{error}; {guard.last_good(self._out)}") from error

        self._world.first(write)

    def _point(self) -> None:
        """This checkpoint is the last one; those that are neither among the last nor the best may go."""
        step, best = self._state.step, self._state.best
        folders.point(self._out, folders.LAST, step)
        if best is not None and (self._out / folders.name(best.step)).is_dir():
            folders.point(self._out, folders.BEST, best.step)
        folders.prune(self._out, step, self._config.run.keep_last, None if best is None else best.step)
