"""The interface of all models that read tokens. Letters: N packed tokens, T tokens, M model width, V vocabulary."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from torch import Tensor, nn

from uwaga.nn import KeyValueCache
from uwaga.ops.engine_choice import Choice
from uwaga.ops.ragged import Ragged

if TYPE_CHECKING:
    from uwaga.models.tokenizers.tokenizer import Tokenizer


# Of rows that are being continued: the ids (N,) that are read first; keys and values of the rows; and a function that reads the next ids (N,) and
# gives the logits (R, V), float32, of the token after the last of each row. It raises ValueError: they contain NaN.
Decoding = tuple[Ragged, KeyValueCache, Callable[[Ragged], Tensor]]


class Model(nn.Module):
    """A model that reads token ids: a `Transformer`, or a `TransformersModel` around one of transformers. `uwaga.models.open` returns one.

    It is called as `model(ids, decoder_ids, outputs=())`, and returns what a Transformer returns.

    Attributes:
        config: a `Config`, or what is known of a model of transformers, in the same names: model_type, vocab_size, has_both, is_causal,
            max_tokens, decoder_start_token_id, eos_token_ids.
        label: its name in messages and recordings: the model type, or the name of the class of transformers.
        continues: whether its last stack is a decoder.
        name: the name that it was opened by; "" for a module.
        title: its name on pages.
        directory: the directory that it was read from; None for a module.
        tokenizer, target_tokenizer: the tokenizers of its input and of its decoder, which can differ; None if it was made or loaded without
            them.
    """

    config: Any
    label: str
    continues: bool
    name: str = ""
    title: str = ""
    directory: Path | None = None
    tokenizer: "Tokenizer" = cast(Any, None)
    target_tokenizer: "Tokenizer" = cast(Any, None)

    @property
    @abstractmethod
    def predicts(self) -> Literal["next", "masked"] | None:
        """What `logits` are of: the token after each, or the token at its place; None: it has no logits."""

    @property
    @abstractmethod
    def steps(self) -> list[nn.Module]:
        """Modules that are called once in a pass, by which progress is counted, in the order in which they are computed."""

    @abstractmethod
    def logits(self, hidden: Tensor) -> Tensor:
        """Compute logits (..., V) from the last hidden states (..., M). Raises ValueError if the model has no logits."""

    def decoding(self, prompts: Ragged, new_tokens: int) -> Decoding:
        """Return the state before the first new token of each prompt, for `uwaga.models.generate`; prompts: ids (N,).

        Raises ValueError if the model does not write text, or writes it by its own code.
        """
        raise ValueError(f"generate: {self.label} is a model of transformers: call its own generate()")

    @abstractmethod
    def read_batch(self, texts: Sequence[Sequence[int]]) -> None:
        """Run it once over several texts, for its maps; a decoder of a model with both stacks reads the same texts."""

    @abstractmethod
    def continuation(self, ids: Sequence[int], max_new_tokens: int) -> list[int]:
        """Return the ids that a decoder writes by greedy search, without the start token. Raises ValueError if it writes no text."""

    @abstractmethod
    def explain(self) -> Choice:
        """Return what computes its hidden states, and why."""

    def read(self, ids: Tensor, decoder_ids: Tensor | None = None) -> Tensor:
        """Return the states (T, M) of the last stack for one text (1, T), or for decoder_ids (1, T) in a model with both stacks."""
        output = self(ids, decoder_ids, outputs=())
        states: Tensor = output.memory if output.last_hidden_state is None else output.last_hidden_state
        return states[0]
