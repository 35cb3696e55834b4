"""A model of transformers in the shape of ours.

Letters: B batch, T tokens, N packed tokens, M model width, V vocabulary.
"""

from collections.abc import Collection, Sequence
from contextlib import ExitStack
from functools import cached_property
from typing import Any, Literal, NamedTuple, cast

import torch
from torch import Tensor, nn

from uwaga._base.arguments import check
from uwaga._base.threads import calling_here
from uwaga.integrations.transformers import inside
from uwaga.integrations.transformers.packing import Packing
from uwaga.models.attention_layers import attention_layers
from uwaga.models.model import Model
from uwaga.models.transformer import Output
from uwaga.nn.operand import one_per_row, tokens_of_rows
from uwaga.ops.engine_choice import Choice
from uwaga.ops.ragged import Ragged


class ModelFacts(NamedTuple):
    """What is known of a model of transformers, in the names of `Config`."""

    model_type: str
    d_model: int  # 0: not known before the first Ragged batch
    vocab_size: int
    has_both: bool
    is_causal: bool  # its only stack is a decoder
    max_tokens: int | None
    eos_token_ids: Collection[int]
    start_token_id: int | None
    label: str

    @property
    def decoder_start_token_id(self) -> int:
        """Raises ValueError: config.json does not name it."""
        if self.start_token_id is None:
            raise ValueError(f"the config of {self.label} has no decoder_start_token_id")
        return self.start_token_id


class TransformersModel(Model):
    """A model of transformers.

    Padded ids are read by its own code, and its body is run without its head, whose logits of a long text would be the largest thing in
    memory. Ragged ids are read with uwaga's attention and linear maps, packed where that gives every text the bits that it has alone
    (`Packing`), which is tried at the first Ragged batch; `unpack` gives the model its own parts again.

    Args:
        model: a PreTrainedModel in evaluation mode.
        types: as in `Packing`.

    Raises:
        ValueError: a model that reads no text, or that is in training mode.
    """

    def __init__(self, model: Any, *, types: tuple[Sequence[int], Sequence[int]] | None = None) -> None:
        name, config, wrong = type(model).__name__, model.config, ""
        if model.main_input_name != "input_ids":
            wrong = f"reads {model.main_input_name}, not a text"
        elif model.training:
            wrong = "is in training mode, in which dropout changes what it computes; call model.eval()"
        check(not wrong, f"{name} {wrong}")
        starts = (getattr(config, key, None) for key in ("decoder_start_token_id", "bos_token_id", "pad_token_id"))
        eos = getattr(config, "eos_token_id", None)
        has_both = bool(config.is_encoder_decoder)
        facts = ModelFacts(
            model_type=config.model_type,
            d_model=0,
            vocab_size=inside.vocab_size(model) or 0,
            has_both=has_both,
            is_causal=not has_both and any(getattr(module, "is_causal", False) is True for module in model.modules()),
            max_tokens=inside.max_tokens(model),
            eos_token_ids=eos if isinstance(eos, list) else [] if eos is None else [eos],
            start_token_id=next((number for number in starts if isinstance(number, int)), None),
            label=name,
        )
        super().__init__()
        self.config, self.label, self.continues = facts, name, facts.has_both or facts.is_causal
        self.model, self._types, self.training = model, types, False
        self._packing: Packing | None = None

    def forward(
        self,
        ids: Ragged | Tensor,
        decoder_ids: Tensor | None = None,
        *,
        token_types: Ragged | None = None,
        attention_mask: Tensor | None = None,
        outputs: tuple[()] = (),
        only: str | None = None,
    ) -> Output:
        """Return the hidden states.

        Args:
            ids: (B, T), or Ragged (N,) without empty rows.
            decoder_ids: (B, T) of a model with both stacks.
            token_types: of Ragged ids, of a model that is given types; None: those of its special tokens.
            attention_mask: (B, T) of padded ids; None: there is no padding.
            outputs: as of our models; there are no others.
            only: as in `Transformer.forward`.
        """
        if not isinstance(ids, Ragged):
            mask = torch.ones_like(ids) if attention_mask is None else attention_mask
            return Output(self._padded(ids, mask, decoder_ids))
        states = self.packing.states(ids, None if token_types is None else token_types.values)
        if only is not None:
            states = one_per_row(states.values[tokens_of_rows("TransformersModel", states, only)])
        return Output(states)

    @property
    def packing(self) -> Packing:
        """How Ragged ids are read. Raises CheckpointError: as `Packing`."""
        if self._packing is None:
            self._packing = Packing(self.model, types=self._types)
            self.config = self.config._replace(d_model=self._packing.width)
        return self._packing

    def unpack(self) -> None:
        """Give the model of transformers its own attention, linear maps and activations again."""
        if self._packing is not None:
            self._packing.undo()
            self._packing = None

    def explain(self) -> Choice:
        return self.packing.choice

    @property
    def steps(self) -> list[nn.Module]:
        return list(attention_layers(self.model))

    def read_batch(self, texts: Sequence[Sequence[int]]) -> None:
        """See `Model`. Shorter texts are padded on the right, where nothing sees them."""
        longest = max(map(len, texts))
        ids_BT = torch.tensor([[*text, *[text[-1]] * (longest - len(text))] for text in texts])
        seen_BT = torch.tensor([[1] * len(text) + [0] * (longest - len(text)) for text in texts])
        self._padded(ids_BT, seen_BT, ids_BT if self.config.has_both else None)

    def continuation(self, ids: Sequence[int], max_new_tokens: int) -> list[int]:
        name = type(self.model).__name__
        check(self.model.can_generate(), f"{name} generates nothing: give what its decoder reads")
        ids_1T = torch.tensor([list(ids)], device=self.model.device)
        result = self.model.generate(
            ids_1T, attention_mask=torch.ones_like(ids_1T), max_new_tokens=max_new_tokens, do_sample=False, num_beams=1
        )
        return cast("list[int]", result[0, 1:].tolist())

    @cached_property
    def predicts(self) -> Literal["next", "masked"] | None:
        if self.model.get_output_embeddings() is None or self._with_states(None) is None:
            return None
        return "next" if self.continues else "masked"

    def logits(self, hidden: Tensor) -> Tensor:
        """See `Model`: logits (n, V) from hidden states (n, M)."""
        result = self._with_states(hidden)
        if result is None:
            raise ValueError(f"{type(self.model).__name__} has no head for logits")
        return result

    def _padded(self, ids: Tensor, seen: Tensor, decoder_ids: Tensor | None) -> Tensor:
        """Compute the hidden states (B, T, M) of padded ids by the model's own code."""
        device = self.model.device
        ids, seen = ids.to(device), seen.to(device)
        if decoder_ids is None:
            states = _called(self.model.base_model, input_ids=ids, attention_mask=seen)
        else:
            memory = _called(self.model.get_encoder(), input_ids=ids, attention_mask=seen)
            states = _called(
                self.model.get_decoder(),
                input_ids=decoder_ids.to(device),
                encoder_hidden_states=memory,
                encoder_attention_mask=seen,
            )
        return states.cpu()

    def _with_states(self, states: Tensor | None) -> Tensor | None:
        """Compute the model's head over states (n, M), whatever the code of the head does; None: the head does not call the last stack.

        The model reads one token, and its last stack returns these states in place of its own. states: None: its own.
        """
        calls: list[nn.Module] = []

        def replaced(module: nn.Module, _: object, output: Any) -> Any:
            # ModernBERT calls its last linear map a decoder.
            if getattr(output, "last_hidden_state", None) is not None:
                calls.append(module)
                if states is not None:
                    output.last_hidden_state = states[None].to(output.last_hidden_state)
            return output

        # OPT's head calls the decoder inside of its body, without the body.
        model, has_both = self.model, self.config.has_both
        stacks = [model.get_decoder()] if has_both else [model.base_model, model.get_decoder()]
        bodies = {id(body): body for body in stacks if isinstance(body, nn.Module) and body is not model}
        one = torch.zeros(1, 1, dtype=torch.int64, device=model.device)
        inputs = {"input_ids": one, "attention_mask": torch.ones_like(one)} | (
            {"decoder_input_ids": one} if has_both else {}
        )
        with ExitStack() as stack, torch.no_grad():
            here = stack.enter_context(calling_here())  # others may run a text meanwhile
            for body in bodies.values():
                stack.callback(body.register_forward_hook(here(replaced)).remove)
            output = model(**inputs, **inside.without_cache(model))
        return cast("Tensor", output.logits[0].cpu()) if calls else None


def _called(module: Any, **inputs: Any) -> Tensor:
    return cast("Tensor", module(**inputs, **inside.without_cache(module)).last_hidden_state)
