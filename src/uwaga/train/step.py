"""The model as it is trained (with loss and optimizer, compiled), one optimizer step, and the validation loss.

Letters: N packed tokens, S scored ones, M model width, V vocabulary.
"""

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.adamw import adamw
from torch.utils.checkpoint import checkpoint as recomputed

from uwaga.models.transformer import Transformer
from uwaga.nn.evaluation_mode import evaluation_mode
from uwaga.ops.attention import api
from uwaga.ops.dropout import rows_from
from uwaga.ops.ragged import Operand, Ragged
from uwaga.train import checkpoint
from uwaga.train.config import Config, OptimizerConfig, ScheduleConfig
from uwaga.train.corpus import MicroBatch, Split
from uwaga.train.parallel import World

# Logits that are in memory at once: 256 MB in float32, and as much each for gradient and softmax.
_MOST_LOGITS = 2**26
_MOMENTS = ("exp_avg", "exp_avg_sq")  # PyTorch's names of the two moving averages of gradients


class StepResult(NamedTuple):
    """What a step measured. Its tensors are on the device, where reading them waits for the computation."""

    step: int  # from 0
    loss: Tensor  # () float64, the mean over all labels of the step
    grad_norm: Tensor  # () before clipping
    local_losses: Tensor  # (micro-batches of this process,) float32, the sum over the labels of each
    lr: float
    tokens: int  # read by all processes
    micro_batches: Sequence[MicroBatch]  # of this process


class TrainableModel:
    """A model with its loss and its optimizer, compiled as the configuration says.

    Args:
        model: with all weights, on the CPU, the same in every process; it is used in place.
        config, world: of the training run.

    Attributes:
        model: as it was given.
        objective: the model with its loss.
        world: as it was given.
        optimizer: of the weights.
    """

    def __init__(self, model: Transformer, config: Config, world: World) -> None:
        self.world, self._config = world, config
        self.model: Transformer = model.to(world.device)
        self.objective = Objective(self.model, config.optimizer.label_smoothing)
        if config.run.compile:
            # The second batch of another size recompiles the graph for all sizes. With dynamic=True from the start, the compiler would make the
            # scale of the scores symbolic too, which attention cannot check then.
            self.objective.compile()
        self.optimizer = Optimizer(self.model, config.optimizer)
        # In bfloat16 products of matrices are, sums and norms are not.
        is_float32 = config.optimizer.dtype == "float32"
        self._autocast = nullcontext if is_float32 else partial(torch.autocast, world.device.type, torch.bfloat16)

    def step(self, number: int, data: Split) -> StepResult:
        """Take optimizer step `number`, from 0, on the training split. The loss is the sum over all labels of the step, in whichever
        process, divided by their number; the gradient is the gradient of this loss."""
        world, every = self.world, data.micro_batches(number)
        local = every[world.data_rank :: world.data_size]
        inputs, counts = [], torch.zeros(2, dtype=torch.int64)
        for micro_batch in local:
            batch = data.batch(micro_batch).part(world.context_rank, world.context)
            arguments, scored = batch.inputs(world.device)
            inputs.append((micro_batch.number, batch.first_token, arguments))
            counts += torch.tensor([scored, batch.tokens])
        labels, tokens = world.all_reduce_sum(counts).tolist()

        losses = []
        for micro_number, first_token, arguments in inputs:
            set_seed(world.device, "dropout", self._config.run.seed, number, micro_number)
            with _attention_of_parts(world, first_token):
                with self._autocast():
                    total = self.objective(*arguments)
                (total * (1 / max(labels, 1))).backward()
            losses.append(total.detach())
        if world.size > 1:
            for weight in self.model.parameters():
                if weight.grad is None:  # of a process without a micro-batch
                    weight.grad = torch.zeros_like(weight)
                world.all_reduce_sum(weight.grad)
        local_losses = torch.stack(losses) if losses else torch.zeros(0, device=world.device)
        loss = world.all_reduce_sum(local_losses.double().sum()) / max(labels, 1)
        ratio = lr_ratio(number, self._config.schedule)
        norm = self.optimizer.step(ratio)
        return StepResult(number, loss, norm, local_losses, self._config.optimizer.lr * ratio, tokens, local)

    def validation_loss(self, data: Split) -> float:
        """Return the mean cross-entropy over all labels of a split, or of about run.eval_tokens, in nats. Each process computes a part, and all
        return the mean."""
        world, batches = self.world, data.evaluation_batches(self._config.run.eval_tokens)
        total = torch.zeros(2, dtype=torch.float64, device=world.device)
        with evaluation_mode(self.objective):
            while some := list(islice(batches, world.data_size)):
                if world.data_rank >= len(some):
                    break
                arguments, scored = some[world.data_rank].part(world.context_rank, world.context).inputs(world.device)
                with _attention_of_parts(world), self._autocast():
                    result = self.objective(*arguments)
                total += torch.stack((result.double(), result.new_full((), scored, dtype=torch.float64)))
        result, labels = world.all_reduce_sum(total).tolist()
        return float(result / max(labels, 1))


def derive_seed(*name: object) -> int:
    """Return 31 bits of a name such as ("dropout", run seed, step, micro-batch): PyTorch's CPU generator reads 32. Generators are seeded by such
    names, so that no checkpoint has to save their state.

    >>> derive_seed("dropout", 0, 1, 2) == derive_seed("dropout", 0, 1, 2)
    True
    >>> derive_seed("dropout", 0, 1, 2) == derive_seed("dropout", 0, 2, 1)
    False
    """
    return int.from_bytes(hashlib.sha256(repr(name).encode()).digest()[:4], "big") >> 1


def set_seed(device: torch.device, *name: object) -> None:
    """Seed PyTorch's generator of the CPU, where attention draws its seeds, and of a CUDA device, by a name.

    Not torch.manual_seed, which looks for every kind of device at each call.
    """
    number = derive_seed(*name)
    torch.default_generator.manual_seed(number)
    if device.type == "cuda":
        torch.cuda.default_generators[device.index or 0].manual_seed(number)


# The loss.


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
        """Return the sum over all labels, () float32.

        Args:
            ids: (N,) int64.
            decoder_ids: (N',) int64, of an encoder and a decoder.
            labels: (S,) int64.
            scored: (S,) int64: which tokens they are of; None for all, in order.
        """
        hidden = self.model(*_lowered(ids, decoder_ids), outputs=()).last_hidden_state
        hidden_NM = hidden.values if isinstance(hidden, Ragged) else hidden.flatten(0, 1)
        hidden_SM = hidden_NM if scored is None else hidden_NM[scored]
        # In evaluation mode the loss is the cross-entropy of the labels.
        smoothing = self.smoothing if self.training else 0.0
        return _cross_entropy(self.model.logits, hidden_SM, labels, smoothing, self.model.config.output_vocab_size)


def _lowered(ids: Ragged, decoder_ids: Ragged | None) -> tuple[Operand, ...]:
    """Return rows in the form that the model computes fastest. Rows of one length, such as windows, are a matrix, which
    has no padding either. In a graph for batches of all sizes rows are packed, without the longest row, which would be
    part of the graph. If several processes share the rows (`uwaga.sequence_parallel`), they stay packed as they are."""
    both = (ids,) if decoder_ids is None else (ids, decoder_ids)
    if torch.compiler.is_compiling():
        return tuple(Ragged(rows.values, rows.offsets) for rows in both)
    if api.override is None and all(len(rows) * rows.max_length == len(rows.values) for rows in both):
        return tuple(rows.values.view(len(rows), -1) for rows in both)
    return both


def _cross_entropy(
    logits: Callable[[Tensor], Tensor], hidden_SM: Tensor, labels_S: Tensor, smoothing: float, vocabulary: int
) -> Tensor:
    """Return the sum over the labels, () float32.

    Logits of large vocabularies are computed in blocks of tokens, and recomputed in the backward pass.
    """

    def summed_loss(hidden: Tensor, labels: Tensor) -> Tensor:
        # In float32 whatever the logits are in: the sum of V exponentials is what loses most.
        return functional.cross_entropy(logits(hidden).float(), labels, reduction="sum", label_smoothing=smoothing)

    rows = max(_MOST_LOGITS // vocabulary, 1)
    if len(labels_S) <= rows:
        return summed_loss(hidden_SM, labels_S)
    blocks = zip(hidden_SM.split(rows), labels_S.split(rows), strict=True)
    if not torch.is_grad_enabled():
        return torch.stack([summed_loss(*block) for block in blocks]).sum()
    return torch.stack([recomputed(summed_loss, *block, use_reentrant=False) for block in blocks]).sum()


# The optimizer.


def lr_ratio(step: int, schedule: ScheduleConfig) -> float:
    """Return the learning rate of a step, counted from 0, divided by the full learning rate.

    It rises linearly over the warm-up steps and reaches 1 with the last of them; then it falls, by half a cosine or linearly,
    and reaches `final_lr_ratio` with the last step of all.

    >>> schedule = ScheduleConfig(steps=5, warmup_steps=2, kind="linear", final_lr_ratio=0.1)
    >>> [round(lr_ratio(step, schedule), 3) for step in range(5)]
    [0.5, 1.0, 0.7, 0.4, 0.1]
    """
    done = step + 1
    if done < schedule.warmup_steps:
        return done / schedule.warmup_steps
    if schedule.kind == "constant":
        return 1.0
    # Without a warm-up the first step is the one at the full rate.
    first = max(schedule.warmup_steps, 1)
    progress = (done - first) / max(schedule.steps - first, 1)
    left = 0.5 * (1.0 + math.cos(math.pi * progress)) if schedule.kind == "cosine" else 1.0 - progress
    return schedule.final_lr_ratio + (1.0 - schedule.final_lr_ratio) * left


class Optimizer:
    """AdamW (Loshchilov and Hutter, "Decoupled Weight Decay Regularization", 2019) with clipping by the global norm.

    Matrices decay; norms and biases do not. This calls PyTorch's function without its optimizer class, which would import the
    compiler (seconds) and inspect every weight in each step.

    Args:
        model: its parameters are changed in place.
        config: the section [optimizer].
    """

    def __init__(self, model: nn.Module, config: OptimizerConfig) -> None:
        self._config = config
        self._named = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
        self._moments = {
            f"{moment}/{name}": torch.zeros_like(weight, memory_format=torch.preserve_format)
            for moment in _MOMENTS
            for name, weight in self._named.items()
        }
        self._updates = self._grouped(0)

    @torch.no_grad()
    def step(self, lr_ratio: float) -> Tensor:
        """Update the weights, at this ratio of the full learning rate, and drop the gradients.

        Returns:
            () the global norm of the gradient before it was clipped.
        """
        norm = self._clip_gradients()
        for weights, update in self._updates:
            update(grads=list(map(_gradient, weights)), lr=self._config.lr * lr_ratio)
        for weight in self._named.values():
            weight.grad = None
        return norm

    def _clip_gradients(self) -> Tensor:
        gradients = [_gradient(weight) for weight in self._named.values()]
        norm = torch.nn.utils.get_total_norm(gradients)
        if self._config.max_grad_norm:
            # As clip_grad_norm_ does, with a norm that every process has.
            factor = torch.clamp(self._config.max_grad_norm / (norm + 1e-6), max=1.0)
            if norm.device.type == "cpu" and factor.item() == 1.0:  # on a CPU, reading it does not wait for a device
                return norm
            torch._foreach_mul_(gradients, factor)
        return norm

    def _grouped(self, steps: int) -> list[tuple[list[Tensor], Callable[..., None]]]:
        """Return weights with one weight decay, and the function that updates them. steps: that were taken."""
        groups: list[tuple[list[Tensor], Callable[..., None]]] = []
        for weight_decay, is_matrix in ((self._config.weight_decay, True), (0.0, False)):
            named = {name: weight for name, weight in self._named.items() if (weight.dim() > 1) == is_matrix}
            exp_avgs, exp_avg_sqs = ([self._moments[f"{moment}/{name}"] for name in named] for moment in _MOMENTS)
            local = [weight.detach() for weight in named.values()]
            update = partial(
                adamw,
                local,
                exp_avgs=exp_avgs,
                exp_avg_sqs=exp_avg_sqs,
                max_exp_avg_sqs=[],
                state_steps=[torch.tensor(float(steps), device=x.device) for x in local],
                fused=True,
                amsgrad=False,
                beta1=self._config.betas[0],
                beta2=self._config.betas[1],
                weight_decay=weight_decay,
                eps=self._config.eps,
                maximize=False,
            )
            if named:
                groups.append((list(named.values()), update))
        return groups

    def state(self) -> dict[str, Tensor]:
        """Return the moments by names such as exp_avg/layers.0..., on the CPU."""
        return {name: value.detach().cpu() for name, value in self._moments.items()}

    def load(self, folder: Path, steps: int) -> None:
        """Continue after so many steps with the moments of a checkpoint. Raises CheckpointError."""
        shapes = {name: torch.empty(x.shape, device="meta") for name, x in self._moments.items()}
        state = checkpoint.read_optimizer(folder, shapes)
        self._moments = {name: state[name].to(value.device) for name, value in self._moments.items()}
        self._updates = self._grouped(steps)


def _gradient(weight: Tensor) -> Tensor:
    assert weight.grad is not None, "every weight has a part in the loss"
    return weight.grad


@contextmanager
def _attention_of_parts(world: World, first_token: int = 0) -> Iterator[None]:
    """Let the processes that share a sequence compute attention inside. first_token: see `Batch`."""
    if world.context == 1:
        yield
        return
    from uwaga.sequence_parallel.sequence import sequence_parallel

    with sequence_parallel(world.context_group), rows_from(first_token):
        yield
