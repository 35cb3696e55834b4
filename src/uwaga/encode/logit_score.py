"""Rerankers that are causal language models: the score in the logits of the token after a pair (Zhang et al., "Qwen3 Embedding", 2025;
sentence-transformers' module LogitScore).

Letters: N packed tokens, P pairs, M model width.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tokenizers import Tokenizer as Backend
from torch import Tensor

from uwaga._base import json_files
from uwaga._base.errors import CheckpointError
from uwaga._base.terminal import printable
from uwaga.encode.chat_template import ChatTemplate
from uwaga.models.checkpoints.modules_json import SentenceModule
from uwaga.models.transformer import Transformer
from uwaga.ops.linear.api import linear_map
from uwaga.ops.ragged import Ragged

# Of the model card of Qwen3-Reranker.
_INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
_CARD = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct provided. Note that the "
    'answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n<Instruct>: '
    f"{{{{ messages[-3].content if messages | length > 2 else '{_INSTRUCTION}' }}}}\n<Query>: {{{{ messages[-2].content }}}}\n"
    "<Document>: {{ messages[-1].content }}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n\n"
)
# The family of Qwen3-Reranker, whose first files have the chat template of Qwen3.
_CARD_FAMILY = "qwen3"
_CARD_INSTEAD = "its chat template carries no pair, and texts are those of Qwen3-Reranker's card"


class LogitScore(NamedTuple):
    """How the logits of the token after a pair become a score."""

    true_id: int
    false_id: int | None  # None: the score is the logit of true_id, and no difference

    def __call__(self, model: Transformer, ids: Ragged) -> Tensor:
        """(P,) float32, of the last token of each text. Two rows of the output projection are multiplied, and not the vocabulary's."""
        states_PM = model(ids, outputs=(), only="last").last_hidden_state.values
        assert model.lm_head is not None
        decoder = model.lm_head.decoder
        table_VM = model.output_embeddings.token_embedding.weight if decoder is None else decoder.weight
        rows = [self.true_id] if self.false_id is None else [self.true_id, self.false_id]
        logits_P2 = model.lm_head.cap(linear_map(states_PM, table_VM[rows]).float())
        return logits_P2[:, 0] if self.false_id is None else logits_P2[:, 0] - logits_P2[:, 1]


def read(folder: Path, modules: Sequence[SentenceModule], model: Transformer, backend: Backend) -> LogitScore:
    """Of a directory with a causal language model.

    modules: those of modules.json after the Transformer. Raises CheckpointError: the model has no logits, or the tokenizer no tokens "yes"
    and "no" where no module LogitScore names others.
    """
    if not (model.config.is_causal and "logits" in model.config.outputs):
        raise CheckpointError(f"{folder} has no logits of a next token, which a reranker of this family is read from")
    path = next((each.folder / "config.json" for each in modules if each.kind == "LogitScore"), None)
    if path is None:
        true_id, false_id = backend.token_to_id("yes"), backend.token_to_id("no")
        if true_id is None or false_id is None:
            raise CheckpointError(
                f"{folder} is no reranker: its tokenizer lacks the tokens yes and no, and it has no module LogitScore"
            )
    else:
        settings = json_files.read(path)
        for name in ("true_token_id", "false_token_id"):
            number = settings.get(name)
            is_id = type(number) is int and 0 <= number < model.config.vocab_size
            if not is_id and not (number is None and name == "false_token_id"):
                raise CheckpointError(
                    f"{path}: {name} must be a token of the vocabulary, not {printable(repr(number))}"
                )
        true_id, false_id = settings["true_token_id"], settings.get("false_token_id")
    return LogitScore(true_id, false_id)


def for_pairs(chat: ChatTemplate, family: object) -> ChatTemplate:
    """The chat template of a reranker. Raises CheckpointError: it leaves out one of the texts of a pair, as sentence-transformers does.

    family: of a directory that sentence-transformers did not save. Such ones of Qwen3-Reranker have the template of Qwen3, which has no
    place for a pair; their texts are those of its card.
    """
    if not (missing := chat.missing_roles()):
        return chat
    if family == _CARD_FAMILY:
        return ChatTemplate(_CARD, chat.path, {}, instead=_CARD_INSTEAD)
    raise CheckpointError(
        f"{chat.path}: its chat template leaves out the message of the role {' and of the role '.join(missing)}, so that a pair has no "
        "score; write a template for the roles system, query and document to chat_template.jinja"
    )
