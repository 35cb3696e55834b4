"""Samples during training: continuations of prompts, answers to sources, or filled masks."""

from collections.abc import Sequence
from itertools import islice
from typing import Any, NamedTuple, cast

import torch
from torch import nn

from uwaga._base.terminal import escape_controls
from uwaga.models.generation.generate import generate
from uwaga.nn.evaluation_mode import evaluation_mode
from uwaga.ops.ragged import Ragged
from uwaga.train import seeds
from uwaga.train.config import Config
from uwaga.train.data.corpus import Corpus
from uwaga.train.errors import ConfigError

# Of sampling: below 1, as is usual for text that people read.
_TEMPERATURE = 0.8
_PROMPT = 16  # tokens of the validation split, the prompt where the configuration has none
_SOURCES = 5


class Sample(NamedTuple):
    """A prompt, and the text that the model generated for it."""

    prompt: str
    text: str


class SampleGenerator:
    """Generates samples, of the same prompts and by the same seed each time.

    Raises:
        ConfigError: a prompt without tokens, longer than data.context_length, or without a mask for a masked language model.
    """

    def __init__(self, config: Config, corpus: Corpus) -> None:
        self._config, self._corpus = config, corpus
        self._mask = corpus.tokenizer.special.mask
        self._prompts = tuple(config.run.sample_prompts) or self._default_prompts()
        for prompt in self._prompts:
            self._ids(prompt)

    def samples(self, model: nn.Module) -> list[Sample]:
        """Samples of a model with all its weights."""
        if not self._prompts:
            return []
        with evaluation_mode(model):
            texts = (
                self._fill_masks(model) if self._config.objective == "masked-language-model" else self._generate(model)
            )
        return [Sample(prompt, text) for prompt, text in zip(self._prompts, texts, strict=True)]

    def _generate(self, model: nn.Module) -> list[str]:
        ids = [self._ids(prompt) for prompt in self._prompts]
        most = cast(Any, model).config.max_tokens
        counts, room = cast(Any, model).config.is_causal, self._config.run.sample_tokens
        if most is not None:
            room = min(room, most + 1 - (max(map(len, ids)) if counts else 1))
        how: dict[str, Any] = {}
        if self._config.objective == "language-model":
            how = {
                "do_sample": True,
                "temperature": _TEMPERATURE,
                "seed": seeds.derive_seed("sample", self._config.run.seed),
            }
        prompts = [torch.tensor(each, device=next(model.parameters()).device) for each in ids]
        written = generate(cast(Any, model), Ragged.from_list(prompts), max_new_tokens=room, **how)
        reads = self._corpus.target_tokenizer or self._corpus.tokenizer
        return [reads.decode(each.tolist()) for each in cast(Ragged, written).to_list()]

    def _fill_masks(self, model: nn.Module) -> list[str]:
        """The prompts with the most probable token in place of each mask."""
        ids = Ragged.from_list([torch.tensor(self._ids(prompt)) for prompt in self._prompts])
        device = next(model.parameters()).device
        output = model(Ragged(ids.values.to(device), ids.offsets.to(device)), outputs=("logits",)).logits
        best = cast(Ragged, output).values.argmax(-1).cpu()
        is_masked = ids.values == torch.tensor(self._mask)
        filled = torch.where(is_masked, best, ids.values)
        return [self._corpus.tokenizer.decode(row.tolist()) for row in ids.with_values(filled).to_list()]

    def _ids(self, prompt: str) -> list[int]:
        """Raises ConfigError."""
        tokenizer, context = self._corpus.tokenizer, self._config.data.context_length
        parts = self._split(prompt)
        ids: list[int] = []
        for number, tokens in enumerate(tokenizer.encode(parts)):
            ids += [cast(int, self._mask)] * (number > 0) + tokens.tolist()
        if not ids:
            raise ConfigError(f"run.sample_prompts: {prompt!r} has no tokens")
        ids = [*tokenizer.before, *ids, *tokenizer.behind]
        if len(ids) > context:
            raise ConfigError(
                f"run.sample_prompts: {prompt[:50]!r} has {len(ids)} tokens, and data.context_length is {context}"
            )
        return ids

    def _split(self, prompt: str) -> Sequence[str]:
        """The parts of a prompt between its masks."""
        if self._mask is None or self._config.objective != "masked-language-model":
            return [prompt]
        name = str(self._corpus.tokenizer.backend.id_to_token(self._mask))
        if name not in prompt:
            raise ConfigError(f"run.sample_prompts: {prompt[:50]!r} has no {name} to fill in")
        return prompt.split(name)

    def _default_prompts(self) -> tuple[str, ...]:
        """Sources or the beginning of a text of the validation split."""
        if self._config.objective == "encoder-decoder":
            return tuple(question.source for question in islice(self._corpus.questions(), _SOURCES))
        if self._config.objective == "masked-language-model":
            return ()
        batch = next(self._corpus.validation.evaluation_batches(1))
        text = self._corpus.tokenizer.decode(batch.ids.values[:_PROMPT].tolist())
        return (text,) if self._fits(text) else ()

    def _fits(self, text: str) -> bool:
        return any(len(tokens) for tokens in self._corpus.tokenizer.encode([text]))


def format_sample(sample: Sample) -> str:
    """A line for a terminal, with control characters escaped."""
    return escape_controls(f"{sample.prompt} > {sample.text}")
