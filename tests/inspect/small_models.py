"""Small models of this package and of transformers, called alike. Letters: B batch, N tokens, H query heads, E value width, M model width."""

import copy
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import tiny_models
import torch
import transformers
from tiny_transformer import WRITERS, made, ragged
from tolerance import once
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import uwaga
from uwaga.models import generate
from uwaga.models.attention_layers import attention_layers
from uwaga.nn import MultiHeadAttention
from uwaga.nn.attention_id import AttentionId

IDS = torch.randint(4, 20, (2, 7), generator=torch.Generator().manual_seed(3))
PROMPTS = [[4, 5, 6, 7], [8], [9, 10, 11]]
OURS = ("bert", *WRITERS)
THEIRS = tuple(f"transformers {family}" for family in ("bert", "gpt2", "llama", "t5"))
T = TypeVar("T")
# The linear map after the heads, by the path of the attention layer.
_OUTPUTS = {"bert": "output.dense", "gpt2": "c_proj", "llama": "o_proj", "t5": "o"}


@dataclass
class Small:
    """A model by its name: of NAMED in tiny_transformer, or "transformers" and a family of tiny_models."""

    name: str
    module: Any

    @classmethod
    def of(cls, name: str) -> "Small":
        family = name.removeprefix("transformers ")
        return cls(name, made(name) if family == name else tiny_models.theirs(family))

    @property
    def is_ours(self) -> bool:
        return not self.name.startswith("transformers ")

    @property
    def has_both(self) -> bool:
        return self.module.config.has_both if self.is_ours else self.module.config.is_encoder_decoder

    @property
    def padded(self) -> str:
        """The form of a padded batch that its family knows."""
        return (
            "right"
            if self.is_ours or self.has_both or self.name.removeprefix("transformers ") in tiny_models.ENCODERS
            else "left"
        )

    @property
    def form(self) -> str:
        """Where it is compared with dense matrices: transformers gives these a mask only for a padded batch."""
        return "whole" if self.is_ours else self.padded

    def inputs(self, form: str = "whole") -> tuple[dict[str, Any], Tensor]:
        """What the model is called with, and (B, N) bool: which of the tokens are none of padding."""
        mask = torch.ones_like(IDS, dtype=torch.bool)
        if form != "whole":
            mask[1, slice(None, 3) if form == "left" else slice(-3, None)] = False
        texts = ragged([ids[seen].tolist() for ids, seen in zip(IDS, mask, strict=True)])
        forms = {"whole": {}, "ragged": {"ids": texts}, "lengths": {"lengths": mask.sum(1)}}
        result = {"ids" if self.is_ours else "input_ids": IDS} | forms.get(form, {"attention_mask": mask})
        if self.has_both:
            result["decoder_ids" if self.is_ours else "decoder_input_ids"] = IDS[:, :5]
        return result, torch.ones_like(IDS[:, :5], dtype=torch.bool) if self.has_both else mask

    def run(self, form: str = "whole") -> Tensor:
        """(tokens, M): the last hidden states, of transformers the logits, at tokens that are none of padding."""
        inputs, mask = self.inputs(form)
        output = self.module(**inputs)
        result = output.last_hidden_state if self.is_ours else output.get("logits", output[0])
        return result.values if isinstance(result, uwaga.Ragged) else result[mask]

    def last_layers(self) -> list[tuple[str, int]]:
        """Kind and number of the last layer of each kind that computes."""
        with uwaga.watch(self.module) as recording:
            self.run()
        return [
            max(where for where in recording.maps if where[0] == kind)
            for kind in dict.fromkeys(kind for kind, _ in recording.maps)
        ]

    def layer(self, where: tuple[str, int]) -> Any:
        return next(module for module, place in attention_layers(self.module).items() if place == where)

    def output_map(self, where: tuple[str, int]) -> nn.Module:
        """W_O."""
        layer = self.layer(where)
        if self.is_ours:
            return layer.output
        family = self.name.removeprefix("transformers ")
        path = next(path for path, module in self.module.named_modules() if module is layer)
        return self.module.get_submodule(f"{path.rsplit('.', 1)[0] if family == 'bert' else path}.{_OUTPUTS[family]}")

    @contextmanager
    def heads_by_a_hook(self, where: tuple[str, int], change: Callable[[Tensor], object]) -> Any:
        """The results of all heads, (..., N, H, E), changed in place on their way to W_O by a hook of PyTorch.

        A map with a hook is called as it is, and with no part of another product: so both sides of a comparison want one.
        """

        def hook(_: nn.Module, arguments: tuple[Tensor]) -> tuple[Tensor]:
            heads = arguments[0].unflatten(-1, (2 if self.is_ours else 4, -1)).clone()
            change(heads)
            return (heads.flatten(-2),)

        handle = self.output_map(where).register_forward_pre_hook(hook)
        yield
        handle.remove()

    def write(self, how: str = "greedy", most: int = 6) -> tuple[list[list[int]], dict[str, Any]]:
        """The texts of the decoder that `how` gives, and what one pass over them is called with.

        how: "greedy", "drawn"; of transformers also "left padding" and "static cache".
        """
        more = {"drawn": {"do_sample": True},
                "static cache": {"cache_implementation": "static", "disable_compile": True}}.get(how, {})  # fmt: skip
        if self.is_ours:
            more |= {"seed": 1} if how == "drawn" else {}
            written = generate(self.module, PROMPTS, max_new_tokens=most, **more)
            starts = [[self.module.config.decoder_start_token_id]] * 3 if self.has_both else PROMPTS
            texts = [start + new for start, new in zip(starts, written, strict=True)]
            read = ragged([text[:-1] for text in texts])
            return texts, {"ids": ragged(PROMPTS), "decoder_ids": read} if self.has_both else {"ids": read}
        inputs, _ = self.inputs(self.padded if how == "left padding" or self.has_both else "whole")
        mask = inputs.setdefault("attention_mask", torch.ones_like(IDS)).long()
        texts = self.module.generate(IDS, attention_mask=mask, max_new_tokens=most, **more)
        if self.has_both:
            return texts.tolist(), inputs | {"decoder_input_ids": texts[:, :-1]}
        mask = nn.functional.pad(mask, (0, texts.shape[1] - 1 - IDS.shape[1]), value=1)
        places = (mask.cumsum(-1) - 1).clamp(min=0)  # as `generate` counts them
        return texts.tolist(), {"input_ids": texts[:, :-1], "attention_mask": mask, "position_ids": places}


def exactly(compute: Callable[[], T]) -> Callable[[], T]:
    """tolerance.once of a model with eager attention in float64."""

    def computed() -> T:
        with _ExactSoftmax():
            return compute()

    return once(computed)


class _ExactSoftmax(TorchFunctionMode):
    """Eager attention casts its softmax to float32, also in float64; here it does not."""

    def __torch_function__(
        self, function: Callable, types: object, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> object:
        casts = function is nn.functional.softmax and args[0].dtype == torch.float64
        return function(*args, **(kwargs or {}) | ({"dtype": None} if casts else {}))


Steps = dict[str, Callable[[Tensor], object]]


def attend(operands: tuple[Tensor, ...], scores_of: Callable[[Tensor, Tensor], Tensor], steps: Steps) -> Tensor:
    """(B, H, Q, E): attention from dense matrices that are changed on the way."""

    def changed(name: str, x: Tensor) -> Tensor:
        if name in steps:
            x = x.clone()
            steps[name](x)
        return x

    query, key, value = map(changed, ("query", "key", "value"), operands)
    weights = changed("weights", changed("scores", scores_of(query, key)).softmax(-1).nan_to_num(0.0))
    return changed("output", weights @ value.repeat_interleave(weights.shape[1] // value.shape[1], 1))


class Dense(nn.Module):
    """A layer of this package that computes so; the layer around it reads the width of `query`."""

    def __init__(self, layer: MultiHeadAttention, steps: Steps) -> None:
        super().__init__()
        self.layer, self.steps, self.query = layer, steps, layer.query

    def forward(self, query: Tensor, key: Tensor | None = None, **options: Any) -> Tensor:
        qkv = self.layer.project(query, *([query] * 2 if key is None else [key] * 2), options.get("rotary"))
        more = {name: options.get(name) for name in ("mask", "bias")} | {
            "scale": self.layer.scale,
            "softcap": self.layer.softcap,
        }

        def scores(query: Tensor, key: Tensor) -> Tensor:
            return uwaga.AttentionMap(query, key, **more).scores[:]

        heads = attend((qkv.query, qkv.key, qkv.value), scores, self.steps)
        return self.layer.output(heads.transpose(-3, -2).flatten(-2))


def with_dense_matrices(model: Small, where: tuple[str, int], steps: Steps) -> Tensor:
    """What a copy of the model gives whose layer computes so, in its `form`."""
    model = copy.deepcopy(model)
    changed = model.layer(where)
    if model.is_ours:
        path, _, name = next(path for path, module in model.module.named_modules() if module is changed).rpartition(".")
        setattr(model.module.get_submodule(path), name, Dense(changed, steps))
        return model.run(model.form)

    def dense(layer: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, **options: Any) -> tuple:
        scaling, bias = options.get("scaling"), options.get("position_bias")

        def scores(query: Tensor, key: Tensor) -> Tensor:
            found = query @ key.repeat_interleave(query.shape[1] // key.shape[1], 1).mT
            found = found * (query.shape[-1] ** -0.5 if scaling is None else scaling)
            return found + mask if bias is None else found + bias + mask

        heads = attend((query, key, value), scores, steps if layer is changed else {})
        return heads.transpose(1, 2).contiguous(), None

    transformers.AttentionInterface.register("test_dense", dense)
    transformers.AttentionMaskInterface.register("test_dense", transformers.AttentionMaskInterface()["eager"])
    model.module.set_attn_implementation("test_dense")
    return model.run(model.form)


def ask(
    recording: uwaga.Recording,
    where: AttentionId,
    query: Any,
    key: Any,
    ids: Tensor | None = None,
    value: Any = None,
    **options: object,
) -> uwaga.Recording:
    """As a model's attention would be seen."""
    arguments = dict.fromkeys(("mask", "bias", "scale", "softcap", "sinks")) | options
    recording.record(where, query, key, arguments, ids)
    recording.store(where, query, key, arguments, value)
    return recording
