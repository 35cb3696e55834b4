"""What sentence-transformers computes from pooled states, or from states of tokens, row by row: its modules Dense, LayerNorm and Normalize.

Letters: S sequences, M and W widths of a module's input and output.
"""

from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from uwaga._base import untrusted
from uwaga._base.errors import CheckpointError
from uwaga._base.options import Switch
from uwaga._base.terminal import printable
from uwaga.encode.colbert import TokenVectors
from uwaga.models.checkpoints import sentence_files, tables, weight_files
from uwaga.models.checkpoints.config_json import ModelSize, setting
from uwaga.models.checkpoints.sentence_files import SentenceModule
from uwaga.models.checkpoints.tables import Table, WeightMapping
from uwaga.nn.plain_modules import apply_linear

# Activations of torch.nn by class, as `uwaga.linear` computes them, and tanh. They give a row the same bits in any batch; PyTorch's GELU,
# SiLU and sigmoid do not.
_ACTIVATIONS = {"Identity": None, "Tanh": None, "ReLU": "relu", "GELU": "gelu"}
_VECTOR, _TOKENS = "sentence_embedding", "token_embeddings"  # inputs and outputs of these modules
_DENSE = {
    "out_features": None,
    "bias": True,
    "activation_function": "torch.nn.modules.activation.Tanh",
    "use_residual": False,
}
_RULES = {"out_features": ModelSize, "bias": Switch, "use_residual": Switch}


class SentenceHead(NamedTuple):
    """The modules after pooling."""

    module: nn.Module  # (S, M) -> (S, W), float32
    width: int  # W
    normalize: bool  # whether vectors are scaled to length 1 at the end


class Dense(nn.Module):
    """Compute activation(linear(x)), plus x or residual(x) with `use_residual`."""

    def __init__(self, width: int, output_dim: int, *, bias: bool, activation: str, use_residual: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(width, output_dim, bias)
        self.activation, self.use_residual = activation, use_residual
        has_own = use_residual and width != output_dim
        self.residual = nn.Linear(width, output_dim, bias=False) if has_own else None

    def forward(self, x_SM: Tensor) -> Tensor:
        output_SW = apply_linear(self.linear, x_SM, activation=_ACTIVATIONS[self.activation])
        output_SW = torch.tanh(output_SW) if self.activation == "Tanh" else output_SW
        if not self.use_residual:
            return output_SW
        return output_SW + (x_SM if self.residual is None else apply_linear(self.residual, x_SM))


class _Normalize(nn.Module):
    def forward(self, x_SM: Tensor) -> Tensor:
        return functional.normalize(x_SM, dim=-1)


def read(
    modules: Sequence[SentenceModule], width: int, *, tokens: TokenVectors | None = None, output: str | None = None
) -> SentenceHead:
    """Read the modules after pooling, with their weights in float32.

    Args:
        modules: the modules, in their order.
        width: M, the width of the pooled states.
        tokens: the settings of a ColBERT model, whose modules compute from states of tokens.
        output: the name of the last module's output. None: the name of its input.

    Raises:
        CheckpointError: a module's settings or weights are wrong, or ask for something that is not implemented.
    """
    layers: list[Any] = []
    vector = _VECTOR if tokens is None else _TOKENS
    for index, (kind, folder) in enumerate(modules):
        if kind == "MultiVectorMask":  # `colbert` reads it
            continue
        path = folder / "config.json"
        settings = untrusted.read_json(path, missing_ok=True)
        sentence_files.check(path, settings, kind)
        if kind == "Dropout":  # acts only in training
            continue
        names = {"module_input_name": settings.get("module_input_name", vector)}
        names["module_output_name"] = settings.get("module_output_name") or names["module_input_name"]
        expected = output if output is not None and index == len(modules) - 1 else vector
        for key, name in zip(names, (vector, expected), strict=True):
            if names[key] != name:
                shown = printable(repr(names[key]))
                raise CheckpointError(f"{path}: {key} is {shown}; only {name!r} is supported")
        if kind == "Normalize":
            layers.append(_Normalize())
            continue
        with torch.device("meta"):
            layer = _dense(path, settings, width) if kind == "Dense" else _layer_norm(path, settings, width)
        table = Table(body=tuple(WeightMapping(name, (name,)) for name in layer.state_dict()))
        read_weights = tables.reader(table, weight_files.find(folder), layer.state_dict(), torch.float32)
        layer.load_state_dict(read_weights(), assign=True)
        layers.append(layer)
        width = layer.linear.out_features if isinstance(layer, Dense) else width
    normalize = bool(layers) and isinstance(layers[-1], _Normalize)
    layers = layers[: len(layers) - normalize]
    if tokens is not None and tokens.projection is not None:
        layers, normalize = [_projection(tokens.projection, width)], True
        width = layers[0].linear.out_features
    return SentenceHead(nn.Sequential(*layers).eval(), width, normalize or (tokens is not None and tokens.normalize))


def _projection(folder: Path, width: int) -> Dense:
    """Read linear.weight of a directory of ColBERT's own code. Raises CheckpointError."""
    weights = weight_files.find(folder)
    stored = weights.stored.get("linear.weight")
    if stored is None or len(stored.shape) != 2 or stored.shape[1] != width or stored.dtype not in tables.FLOATING:
        found = "there is none" if stored is None else f"it is {stored.shape} {stored.dtype}"
        raise CheckpointError(
            f"{weights.path}: the projection linear.weight must be (any, {width}) floating numbers; {found}"
        )
    weight = weights.read("linear.weight").to(torch.float32, copy=True)
    if not bool(weight.isfinite().all()):
        raise CheckpointError(f"{weights.path}: the projection linear.weight has an entry that is NaN or infinite")
    with torch.device("meta"):
        dense = Dense(width, stored.shape[0], bias=False, activation="Identity", use_residual=False)
    dense.load_state_dict({"linear.weight": weight}, assign=True)
    return dense


def _dense(path: Path, settings: dict[str, object], width: int) -> Dense:
    _check_width(path, "in_features", settings.get("in_features"), width)
    values = {name: settings.get(name, default) for name, default in _DENSE.items()}
    for name, rule in _RULES.items():
        setting(values, path, name, rule, None)
    where, _, activation = str(values["activation_function"]).rpartition(".")
    if not where.startswith("torch.nn") or activation not in _ACTIVATIONS:
        shown, supported = printable(repr(values["activation_function"])), ", ".join(_ACTIVATIONS)
        raise CheckpointError(f"{path}: activation_function is {shown}; supported, of torch.nn: {supported}")
    return Dense(
        width,
        cast(int, values["out_features"]),
        bias=bool(values["bias"]),
        activation=activation,
        use_residual=bool(values["use_residual"]),
    )


def _layer_norm(path: Path, settings: dict[str, object], width: int) -> nn.Module:
    _check_width(path, "dimension", settings.get("dimension"), width)
    return nn.Sequential(OrderedDict(norm=nn.LayerNorm(width)))  # the name that its weights have in the file


def _check_width(path: Path, key: str, value: object, width: int) -> None:
    if value != width:
        raise CheckpointError(
            f"{path}: {key} is {printable(repr(value))}, but the vectors before it have {width} numbers"
        )
