"""Rerankers that are causal language models: the template that makes a text of a pair, and the score in the logits of the next token
(Zhang et al., "Qwen3 Embedding", 2025; sentence-transformers' module LogitScore).

Letters: N packed tokens, P pairs, M model width.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tokenizers import Tokenizer as Backend
from torch import Tensor

from uwaga._base import json_files, untrusted
from uwaga._base.errors import CheckpointError
from uwaga._base.terminal import printable
from uwaga.models.checkpoints.modules_json import SentenceModule
from uwaga.models.rotary.model import RotaryModel
from uwaga.ops.linear.api import linear_map
from uwaga.ops.ragged import Ragged

# Of the model card of Qwen3-Reranker.
_INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
_CARD = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct provided. Note that the "
    'answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n<Instruct>: {instruction}\n<Query>: {query}\n'
    "<Document>: {document}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
)
# What stands for the texts while a template is read: characters for private use.
_MARKS = {"system": "\ue000i\ue000", "query": "\ue000q\ue000", "document": "\ue000d\ue000"}
# What a template may consist of: no loop, call or multiplication, so that it is rendered in bounded time and memory.
_NODES = {
    "Template", "Output", "TemplateData", "Assign", "Name", "Const", "Filter", "Getattr", "Getitem", "If", "CondExpr", "Compare",
    "Operand", "Keyword", "Not", "And", "Or", "Test", "Concat", "Add",
}  # fmt: skip
_FILTERS = {"selectattr", "map", "first", "last", "default", "trim", "list", "length", "string"}
_TEMPLATE_BYTES = 2**16


class PairTemplate(NamedTuple):
    """A text for a query and a passage, with a mark where each of them is."""

    default: str  # without an instruction of the caller
    instructed: str  # with a mark for it, or as `default` where the template reads none

    def render(self, query: str, passage: str, instruction: str | None) -> str:
        before, between, after = self._parts(instruction)
        return f"{before}{query}{between}{passage}{after}"

    def after(self, instruction: str | None) -> str:
        """What follows the passage."""
        return self._parts(instruction)[2]

    def has_instruction(self) -> bool:
        return _MARKS["system"] in self.instructed

    def _parts(self, instruction: str | None) -> tuple[str, str, str]:
        text = self.default if instruction is None else self.instructed
        before, _, rest = text.partition(_MARKS["query"])
        between, _, after = rest.partition(_MARKS["document"])
        parts = (before, between, after)
        if instruction is not None:
            before, between, after = (part.replace(_MARKS["system"], instruction) for part in parts)
        return before, between, after


class LogitScore(NamedTuple):
    """How a pair becomes a text, and the logits of the token after it a score."""

    template: PairTemplate
    true_id: int
    false_id: int | None  # None: the score is the logit of true_id, and no difference

    def __call__(self, model: RotaryModel, ids: Ragged) -> Tensor:
        """(P,) float32, of the last token of each text. Two rows of the output projection are multiplied, and not the vocabulary's."""
        states_PM = model(ids, outputs=(), only="last").last_hidden_state.values
        table_VM = model.token_embedding.weight if model.lm_head is None else model.lm_head.weight
        rows = [self.true_id] if self.false_id is None else [self.true_id, self.false_id]
        logits_P2 = linear_map(states_PM, table_VM[rows]).float()
        softcap = model.config.logit_softcap
        logits_P2 = logits_P2 if softcap is None else torch.tanh(logits_P2 / softcap) * softcap
        return logits_P2[:, 0] if self.false_id is None else logits_P2[:, 0] - logits_P2[:, 1]


def read(folder: Path, modules: Sequence[SentenceModule], model: RotaryModel, backend: Backend) -> LogitScore:
    """Of a directory with a causal language model.

    modules: those of modules.json after the Transformer. Raises CheckpointError: the model has no logits, the tokenizer no tokens "yes" and
    "no" where no module LogitScore names others, or the template is one that is not evaluated.
    """
    if not (model.config.is_causal and model.config.has_lm_head):
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
    return LogitScore(_template(folder), true_id, false_id)


def _template(folder: Path) -> PairTemplate:
    """That of the directory, where it has one for a query and a document; else that of Qwen3-Reranker's card."""
    path = folder / "chat_template.jinja"
    try:
        text: object = untrusted.read_file(path, _TEMPLATE_BYTES).decode()
    except FileNotFoundError:
        path = folder / "tokenizer_config.json"
        text = (json_files.optional(path) or {}).get("chat_template")
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    settings = json_files.optional(folder / "config_sentence_transformers.json") or {}
    prompt = _prompt(folder, settings)
    if not isinstance(text, str) or len(text) > _TEMPLATE_BYTES or not ("query" in text and "document" in text):
        marks = {"query": _MARKS["query"], "document": _MARKS["document"]}
        own = _CARD.format(instruction=prompt or _INSTRUCTION, **marks)
        return PairTemplate(own, _CARD.format(instruction=_MARKS["system"], **marks))
    default = _rendered(text, path, prompt)
    return PairTemplate(default, _rendered(text, path, _MARKS["system"]))


def _prompt(folder: Path, settings: Mapping[str, Any]) -> str | None:
    """The instruction that sentence-transformers puts before every pair."""
    name, prompts = settings.get("default_prompt_name"), settings.get("prompts") or {}
    prompt = prompts.get(name) if isinstance(prompts, dict) and name is not None else None
    if name is not None and not isinstance(prompt, str):
        raise CheckpointError(
            f"{folder}: default_prompt_name is {printable(repr(name))}, and there is no prompt of that name"
        )
    return prompt


def _rendered(text: str, path: Path, system: str | None) -> str:
    """A chat template, with marks for the query and the document, as transformers renders it. Raises CheckpointError: it consists of
    other things than texts, conditions and filters, or has not one place for each, the query before the document."""
    import jinja2
    from jinja2 import nodes
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, optimized=False)
    roles = [role for role in ("system", "query", "document") if role != "system" or system is not None]
    messages = [{"role": role, "content": system if role == "system" else _MARKS[role]} for role in roles]
    try:
        parsed = environment.parse(text)
        for node in [parsed, *parsed.find_all(nodes.Node)]:
            kind = type(node).__name__
            name = node.name if isinstance(node, nodes.Filter) else None
            if kind not in _NODES or (name is not None and name not in _FILTERS):
                raise CheckpointError(
                    f"{path}: its template for pairs has {printable(name or kind)}, and Reranker evaluates texts, conditions and "
                    f"the filters {', '.join(sorted(_FILTERS))}"
                )
        result = environment.from_string(text).render(messages=messages, add_generation_prompt=False)
    except (jinja2.TemplateError, RecursionError, TypeError, ValueError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{path}: its template for pairs cannot be rendered: {printable(str(error))}") from error
    query, document = _MARKS["query"], _MARKS["document"]
    if result.count(query) != 1 or result.count(document) != 1 or result.index(query) > result.index(document):
        raise CheckpointError(f"{path}: its template for pairs has not one query and one document after it")
    return str(result)
