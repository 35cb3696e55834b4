"""A classifier of transformers with one label, over ragged token ids: a pair of texts has the same bits in any batch.

The body runs by `Packing`, in one row where that is sure to change no text. What follows it, a pooler and a classifier of whatever
kind, runs as the model's own code for one text after another, given the states that were computed: its time is that of one token.

Letters: N tokens of all texts, P texts, M width.
"""

from contextvars import ContextVar
from copy import copy
from typing import Any

import torch
from torch import Tensor, nn

from uwaga._base.errors import CheckpointError
from uwaga.integrations.transformers import inside
from uwaga.integrations.transformers.packing import CANNOT, ONE_BY_ONE, PACKED, Packing, example_text
from uwaga.nn.evaluation_mode import evaluation_mode
from uwaga.ops.engine_choice import Choice
from uwaga.ops.ragged import Ragged

_STATES: ContextVar[Tensor] = ContextVar("uwaga_states")  # (N, M) of the text whose number is computed


class RaggedClassifier(nn.Module):
    """A model for sequence classification of transformers, with uwaga's attention and linear maps in its body.

    Attributes:
        model: the model, changed as by `Packing`.
        max_tokens: of a pair; None: any number.
        choice: whether it runs "transformers, packed" or "transformers, one by one", and why.

    Args:
        model: in evaluation mode, with one label.
        takes_types: whether it is given the token types of `forward`.

    Raises:
        CheckpointError: as Packing; a model that does not give one number to a text.
    """

    def __init__(self, model: Any, *, takes_types: bool) -> None:
        super().__init__()
        self._takes_types = takes_types and inside.takes(model, "token_type_ids")
        self._options = inside.without_cache(model)
        body = Packing(getattr(model, model.base_model_prefix), types=((), ()) if takes_types else None)
        self.model, self.max_tokens = model, inside.max_tokens(body.model)
        # None: the classifier needs more of its body than states, so that the model runs as a whole, one text after another.
        self._body: Packing | None = body
        # What follows the body: a second module of the same parts, whose body gives the states of `_STATES`.
        self._states = GivenStates(body.model)
        rest = copy(model)
        rest._modules = {**model._modules, model.base_model_prefix: self._states}
        self.__dict__["_rest"] = rest  # no submodule: its weights are the model's
        with evaluation_mode(model):
            why_not = self._separate(body)
        self.choice = body.choice
        if why_not is not None:
            self._body = None
            self.choice = Choice(ONE_BY_ONE, body.choice.reason, {PACKED: body.choice.refused.get(PACKED, why_not)})

    def forward(self, ids: Ragged, token_types: Tensor | None = None) -> Tensor:
        """Compute the number of each text before any activation, (P,).

        ids: values (N,); no text may be empty. token_types: (N,), ignored by a model that does not read them.
        """
        types = torch.zeros_like(ids.values) if token_types is None else token_types
        by_text = zip(ids.to_list(), ids.with_values(types).to_list(), strict=True)
        if self._body is None:
            return torch.stack([self._run(text, of_text) for text, of_text in by_text])
        states = self._body.states(ids, types).to_list()
        return torch.stack([self._classify(*text, x) for text, x in zip(by_text, states, strict=True)])

    def _run(self, ids_N: Tensor, types_N: Tensor, model: Any = None) -> Tensor:
        inputs = {"input_ids": ids_N[None], "attention_mask": torch.ones_like(ids_N)[None]}
        if self._takes_types:
            inputs["token_type_ids"] = types_N[None]
        logits = (model or self.model)(**inputs, **self._options).logits
        if logits.shape != (1, 1):
            raise CheckpointError(f"{type(self.model).__name__} of transformers does not give one number to a text")
        result: Tensor = logits[0, 0]
        return result

    def _classify(self, ids_N: Tensor, types_N: Tensor, states_NM: Tensor) -> Tensor:
        """Return the number of a text whose states are known."""
        token = _STATES.set(states_NM)
        try:
            return self._run(ids_N, types_N, self._rest)
        finally:
            _STATES.reset(token)

    def _separate(self, body: Packing) -> str | None:
        """Return why the classifier does not give the same number from computed states, or None if it does. Raises CheckpointError."""
        ids_N = torch.tensor(example_text(7, inside.vocab_size(body.model) or 1), device=self.model.device)
        types_N, name = torch.zeros_like(ids_N), type(self.model).__name__
        try:
            expected = self._run(ids_N, types_N)
        except CANNOT as error:
            raise CheckpointError(f"{name} of transformers cannot read tokens alone: {error}") from error
        try:
            self._states.learn(ids_N)
            result = self._classify(ids_N, types_N, body.states_alone(ids_N, types_N))
        except CANNOT as error:
            return f"the classifier of {name} reads more than the states of its body: {error}"
        if torch.equal(result, expected):
            return None
        return f"the classifier of {name} reads more than the states of its body"


class GivenStates(nn.Module):
    """In the place of a body: its output, with states that were computed before."""

    body: Any

    def __init__(self, body: Any) -> None:
        super().__init__()
        self.__dict__["body"] = body  # no submodule: its weights are those of the body
        self.config = body.config

    def learn(self, ids_N: Tensor) -> None:
        """Note which class of output the body returns."""
        self._kind = type(self.body(input_ids=ids_N[None], attention_mask=torch.ones_like(ids_N)[None]))

    def forward(self, *_: Any, **__: Any) -> Any:
        states = _STATES.get()[None]
        pooler = getattr(self.body, "pooler", None)
        pooled = {} if pooler is None else {"pooler_output": pooler(states)}
        return self._kind(last_hidden_state=states, **pooled)
