"""Models of transformers as they read texts.

Letters: B batch, T tokens, M model width, V vocabulary.
"""

import inspect
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from typing import Any, cast

import torch
from torch import Tensor, nn

from uwaga._base.threads import calling_here
from uwaga.inspect.adapters.adapter import Head
from uwaga.inspect.layers import huggingface


class HuggingFaceAdapter:
    """See `Adapter`.

    The model's body is run, without its head, whose logits of a long text would be the largest thing in memory: they are computed for
    the tokens that are asked for.

    Args:
        model: a PreTrainedModel, or a module that has one inside.

    Raises:
        ValueError: a model that reads no text, that is in training mode, or that computes attention by itself.
    """

    def __init__(self, model: nn.Module) -> None:
        (_, whole), *more = huggingface.outermost(model)
        name = type(whole).__name__
        if more:
            raise ValueError(
                f"{type(model).__name__} has {1 + len(more)} models of transformers inside: give one of them"
            )
        if whole.main_input_name != "input_ids":
            raise ValueError(f"{name} reads {whole.main_input_name}, not a text")
        if whole.training:
            raise ValueError(
                f"{name} is in training mode, in which dropout changes what it computes; call model.eval()"
            )
        if not whole._can_set_attn_implementation():
            raise ValueError(f"{name} computes attention by itself, where nothing can be watched or changed")
        self._model = whole

    @property
    def has_both(self) -> bool:
        """See `Adapter`."""
        return bool(self._model.config.is_encoder_decoder)

    @property
    def max_tokens(self) -> int | None:
        """See `Adapter`. Where positions are a table it is the rows that positions reach: those of RoBERTa begin after the padding's."""
        config = self._model.config.get_text_config(decoder=self.has_both)
        rooms = [getattr(config, "max_position_embeddings", None)]
        for path, module in self._model.named_modules():
            if (
                isinstance(module, nn.Embedding)
                and path.endswith("position_embeddings")
                and module.padding_idx is not None
            ):
                rooms.append(module.num_embeddings - module.padding_idx - 1)
        known = [room for room in rooms if isinstance(room, int) and room > 0]
        return min(known, default=None)

    @property
    def decoder_start_token_id(self) -> int:
        """See `Adapter`. Raises ValueError: config.json does not name it."""
        config = self._model.config
        named = (getattr(config, name, None) for name in ("decoder_start_token_id", "bos_token_id", "pad_token_id"))
        start = next((each for each in named if isinstance(each, int)), None)
        if start is None:
            raise ValueError(f"the config of {type(self._model).__name__} has no decoder_start_token_id")
        return start

    @property
    def eos_token_ids(self) -> Collection[int]:
        """See `Adapter`."""
        named = getattr(self._model.config, "eos_token_id", None)
        return named if isinstance(named, list) else [] if named is None else [named]

    @property
    def continues(self) -> bool:
        """See `Adapter`."""
        return self.has_both or any(layer.id.kind == "decoder" for layer in huggingface.find_attentions(self._model))

    def attentions(self) -> list[nn.Module]:
        """See `Adapter`."""
        return [layer.module for layer in huggingface.find_attentions(self._model)]

    def layers(self) -> list[nn.Module]:
        """See `Adapter`."""
        return self.attentions()

    def read(self, ids: Tensor, decoder_ids: Tensor | None) -> Tensor:
        """See `Adapter`."""
        return self._states(ids, torch.ones_like(ids), decoder_ids)[0]

    def read_each(self, texts: Sequence[Sequence[int]]) -> None:
        """See `Adapter`. Shorter texts are padded on the right, where nothing sees them."""
        longest = max(map(len, texts))
        ids_BT = torch.tensor([[*text, *[text[-1]] * (longest - len(text))] for text in texts])
        seen_BT = torch.tensor([[1] * len(text) + [0] * (longest - len(text)) for text in texts])
        self._states(ids_BT, seen_BT, ids_BT if self.has_both else None)

    def generate(self, ids: Sequence[int], max_new_tokens: int) -> list[int]:
        """See `Adapter`."""
        if not self._model.can_generate():
            raise ValueError(f"{type(self._model).__name__} generates nothing: give what its decoder reads")
        ids_1T = torch.tensor([list(ids)], device=self._model.device)
        result = self._model.generate(
            ids_1T, attention_mask=torch.ones_like(ids_1T), max_new_tokens=max_new_tokens, do_sample=False, num_beams=1
        )
        return cast("list[int]", result[0, 1:].tolist())

    def head(self) -> Head | None:
        """See `Adapter`."""
        if self._model.get_output_embeddings() is None or self._with_states(None) is None:
            return None
        return Head("next" if self.continues else "masked", self._logits)

    def _states(self, ids: Tensor, seen: Tensor, decoder_ids: Tensor | None) -> Tensor:
        device = self._model.device
        ids, seen = ids.to(device), seen.to(device)
        if decoder_ids is None:
            states = _called(self._model.base_model, input_ids=ids, attention_mask=seen)
        else:
            memory = _called(self._model.get_encoder(), input_ids=ids, attention_mask=seen)
            states = _called(
                self._model.get_decoder(),
                input_ids=decoder_ids.to(device),
                encoder_hidden_states=memory,
                encoder_attention_mask=seen,
            )
        return states.cpu()

    def _logits(self, states: Tensor) -> Tensor:
        result = self._with_states(states)
        assert result is not None
        return result

    def _with_states(self, states: Tensor | None) -> Tensor | None:
        """The model's head, whatever its code does, over given states (n, M): the model reads one token, and its last stack gives these
        states in place of its own. None where the head does not call the last stack, which has no states of a head then.

        states: None: its own.
        """
        calls: list[nn.Module] = []

        def replaced(module: nn.Module, _: object, output: Any) -> Any:
            is_stack = (
                getattr(output, "last_hidden_state", None) is not None
            )  # ModernBERT calls its last linear map a decoder
            if is_stack:
                calls.append(module)
                if states is not None:
                    output.last_hidden_state = states[None].to(output.last_hidden_state)
            return output

        # OPT's head calls the decoder inside of its body, without the body.
        stacks = [self._model.get_decoder()] if self.has_both else [self._model.base_model, self._model.get_decoder()]
        inside = {id(each): each for each in stacks if isinstance(each, nn.Module) and each is not self._model}
        one = torch.zeros(1, 1, dtype=torch.int64, device=self._model.device)
        given = {
            "input_ids": one,
            "attention_mask": torch.ones_like(one),
            **({"decoder_input_ids": one} if self.has_both else {}),
        }
        with ExitStack() as stack, torch.no_grad():
            here = stack.enter_context(calling_here())  # others may run a text meanwhile
            for each in inside.values():
                stack.callback(each.register_forward_hook(here(replaced)).remove)
            output = self._model(**given, **_no_cache(self._model))
        return cast("Tensor", output.logits[0].cpu()) if calls else None


def _called(module: Any, **given: Any) -> Tensor:
    return cast("Tensor", module(**given, **_no_cache(module)).last_hidden_state)


def _no_cache(module: Any) -> dict[str, bool]:
    """use_cache=False where there is a cache: without one, the passes of two texts are not joined."""
    return {"use_cache": False} if "use_cache" in inspect.signature(module.forward).parameters else {}
