"""What is measured of a model in training besides its loss: error rates, samples, and attention statistics.

Letters: H heads, N packed tokens.
"""

from collections.abc import Mapping, Sequence
from itertools import islice
from operator import itemgetter
from typing import Any, NamedTuple, cast

import torch

from uwaga._base.arguments import check
from uwaga.maps.map import AttentionMap, map_options
from uwaga.maps.per_head import has_visible_key, per_head
from uwaga.models.attention_layers import attention_layers
from uwaga.models.generating import generate
from uwaga.models.transformer import Transformer
from uwaga.nn.evaluation_mode import evaluation_mode
from uwaga.ops.attention.hooks import Asked, hooked, looking
from uwaga.ops.ragged import Ragged
from uwaga.train.config import Config
from uwaga.train.corpus import Batch, Corpus
from uwaga.train.errors import ConfigError
from uwaga.train.step import Objective, derive_seed

# During training, error rates are of this many sources; after the last step they are of all.
_SAMPLED_SOURCES = 1000
# Sources that are answered in one call of generate.
_GENERATE_ROWS = 256
# Of sampling: below 1, as is usual for text that people read.
_TEMPERATURE = 0.8
_PROMPT = 16  # tokens of the validation split, the prompt if the configuration has none
_PROMPTS = 5  # sources, if the configuration has none
# Tokens of the batch whose attention is measured: enough for means, and little work compared with a step.
_ATTENTION_TOKENS = 2048

# Error rates of a model's answers.


class ErrorRates(NamedTuple):
    """Fractions, not per cent. A phoneme error rate may exceed 1: too much may have been written."""

    phoneme: float  # insertions, deletions and substitutions, divided by the phonemes of the nearest references
    word: float  # predictions that equal none of their references
    words: int  # the number of predictions


def model_error_rates(model: Transformer, config: Config, corpus: Corpus, *, all: bool) -> ErrorRates:
    """Answer the sources of the validation split greedily, and compare with all targets that the data lists for each.

    Args:
        model: with all its weights.
        config, corpus: of a training run on pairs.
        all: every source, else a thousand, evenly spaced.
    """
    asked = list(corpus.questions())
    if not all and len(asked) > _SAMPLED_SOURCES:
        asked = [asked[number * len(asked) // _SAMPLED_SOURCES] for number in range(_SAMPLED_SOURCES)]
    reader, writer = corpus.tokenizers
    ends, most = {writer.special.eos, writer.special.pad}, config.data.context_length
    most = most if model.config.max_tokens is None else min(most, model.config.max_tokens)
    predictions: list[str] = []
    with evaluation_mode(model):
        for start in range(0, len(asked), _GENERATE_ROWS):
            sources = reader.encode([source for source, _ in asked[start : start + _GENERATE_ROWS]])
            prompts = [[*reader.before, *ids.tolist(), *reader.behind] for ids in sources]
            for ids in _generated(model, prompts, max_new_tokens=most):
                # Unknown tokens stay, and count as errors.
                predictions.append(writer.decode([number for number in ids if number not in ends], all=True))
    return error_rates(predictions, [[writer.normalized(target) for target in targets] for _, targets in asked])


def _generated(model: Transformer, prompts: Sequence[Sequence[int]], **how: Any) -> list[list[int]]:
    device = next(model.parameters()).device
    asked = Ragged.from_list([torch.tensor(ids, device=device) for ids in prompts])
    return [ids.tolist() for ids in cast(Ragged, generate(model, asked, **how)).to_list()]


def error_rates(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> ErrorRates:
    """Return phoneme and word error rates; phonemes are separated by spaces.

    Each prediction is compared with its nearest reference: the first one listed if two are equally near.

    Args:
        predictions: one for each word.
        references: all right answers for each word.

    Raises:
        ValueError: no words, another number of predictions, or a word without a reference.

    >>> error_rates(["AH T EH N SH AH N", "R EH D"], [["AH T EH N CH AH N"], ["R IY D", "R EH D"]])
    ErrorRates(phoneme=0.1, word=0.5, words=2)
    """
    counts = f"{len(predictions)} for {len(references)}"
    check(0 < len(predictions) == len(references), f"error_rates: needs as many predictions as words, not {counts}")
    for number, answers in enumerate(references):
        check(any(map(str.split, answers)), f"error_rates: word {number} has no reference")
    errors = wrong = total = 0
    for prediction, answers in zip(predictions, references, strict=True):
        written = prediction.split()
        distance, length = min(
            ((edit_distance(written, answer), len(answer)) for answer in map(str.split, answers)), key=itemgetter(0)
        )
        errors, wrong, total = errors + distance, wrong + (distance > 0), total + length
    return ErrorRates(errors / total, wrong / len(predictions), len(predictions))


def edit_distance(left: Sequence[str], right: Sequence[str]) -> int:
    """Return the Levenshtein distance in tokens, by the table of Wagner and Fischer (1974), row by row.

    >>> edit_distance(["K", "AE", "T"], ["K", "AH", "T", "S"])
    2
    """
    row = list(range(len(right) + 1))
    for i, token in enumerate(left, start=1):
        diagonal, row[0] = row[0], i
        for j, other in enumerate(right, start=1):
            diagonal, row[j] = row[j], min(diagonal + (token != other), row[j] + 1, row[j - 1] + 1)
    return row[-1]


# Samples: continuations of prompts, answers to sources, or filled masks.


def sample_prompts(config: Config, corpus: Corpus) -> list[tuple[str, list[int]]]:
    """Return the prompts of samples, and their tokens.

    Raises:
        ConfigError: a prompt without tokens, longer than data.context_length, or without a mask for a masked language model.
    """
    return [(prompt, _prompt_ids(prompt, config, corpus)) for prompt in _prompts(config, corpus)]


def _prompts(config: Config, corpus: Corpus) -> tuple[str, ...]:
    """Return the prompts of the configuration; else sources or the beginning of a text of the validation split."""
    if config.run.sample_prompts or config.objective == "masked-language-model":
        return config.run.sample_prompts
    if config.objective == "encoder-decoder":
        return tuple(source for source, _ in islice(corpus.questions(), _PROMPTS))
    batch = next(corpus.validation.evaluation_batches(1))
    text = corpus.tokenizer.decode(batch.ids.values[:_PROMPT].tolist())
    return (text,) if len(corpus.tokenizer.encode([text])[0]) else ()


def _prompt_ids(prompt: str, config: Config, corpus: Corpus) -> list[int]:
    """Return the tokens of a prompt. Raises ConfigError."""
    tokenizer, context = corpus.tokenizer, config.data.context_length
    mask = tokenizer.special.mask if config.objective == "masked-language-model" else None
    name = None if mask is None else str(tokenizer.backend.id_to_token(mask))
    ids: list[int] = []
    for number, tokens in enumerate(tokenizer.encode([prompt] if name is None else prompt.split(name))):
        ids += [cast(int, mask)] * (number > 0) + tokens.tolist()
    whole = [*tokenizer.before, *ids, *tokenizer.behind]
    for is_wrong, what in (
        (name is not None and name not in prompt, f"{prompt[:50]!r} has no {name} to fill in"),
        (not ids, f"{prompt!r} has no tokens"),
        (len(whole) > context, f"{prompt[:50]!r} has {len(whole)} tokens, and data.context_length is {context}"),
    ):
        if is_wrong:
            raise ConfigError(f"run.sample_prompts: {what}")
    return whole


def samples(model: Transformer, prompts: Sequence[Sequence[int]], config: Config, corpus: Corpus) -> list[str]:
    """Return the text that a model with all its weights generates for each prompt; the same each time."""
    if not prompts:
        return []
    with evaluation_mode(model):
        if config.objective == "masked-language-model":
            return _filled_masks(model, prompts, corpus)
        room, most = config.run.sample_tokens, model.config.max_tokens
        if most is not None:
            room = min(room, most + 1 - (max(map(len, prompts)) if model.config.is_causal else 1))
        how: dict[str, Any] = {}
        if config.objective == "language-model":
            seed = derive_seed("sample", config.run.seed)
            how = {"do_sample": True, "temperature": _TEMPERATURE, "seed": seed}
        written = _generated(model, prompts, max_new_tokens=room, **how)
    return [corpus.target_tokenizer.decode(ids) for ids in written]


def _filled_masks(model: Transformer, prompts: Sequence[Sequence[int]], corpus: Corpus) -> list[str]:
    """Return the prompts with the most probable token in place of each mask."""
    ids = Ragged.from_list([torch.tensor(prompt) for prompt in prompts])
    device = next(model.parameters()).device
    output = model(Ragged(ids.values.to(device), ids.offsets.to(device)), outputs=("logits",)).logits
    best = cast(Ragged, output).values.argmax(-1).cpu()
    filled = torch.where(ids.values == torch.tensor(corpus.tokenizer.special.mask), best, ids.values)
    return [corpus.tokenizer.decode(row.tolist()) for row in ids.with_values(filled).to_list()]


# Attention statistics of every head. A head whose entropy falls to 0 attends to one token and learns nothing more (Zhai et al.,
# "Stabilizing Transformer Training by Preventing Attention Entropy Collapse", 2023); one with all its weight on the first token has no
# effect (Xiao et al., "Efficient Streaming Language Models with Attention Sinks", 2023).

HeadStatistics = Mapping[str, Mapping[str, list[float]]]


def attention_statistics(model: Transformer, batch: Batch) -> HeadStatistics:
    """Return statistics of all attention layers of a model, in evaluation mode and float32, on the model's device.

    Returns:
        by layer ("encoder 0", "decoder 3", "cross 1") and statistic one number per head, the mean over all queries: "entropy" in nats,
        "normalized_entropy", divided by the entropy of uniform weights on all visible keys, and "sink", the weight on the first key.
    """
    names, maps = attention_layers(model), dict[str, AttentionMap]()

    def keep(asked: Asked, module: Any) -> None:
        maps[str(names[module])] = AttentionMap(asked.query, asked.key, **map_options(asked.options))

    objective = Objective(model)
    with evaluation_mode(objective), hooked(dict.fromkeys(names, looking(keep)), only_look=True):
        arguments, _ = batch.first_rows(_ATTENTION_TOKENS).inputs(next(model.parameters()).device)
        objective(*arguments)
    return {name: _statistics(attention_map) for name, attention_map in maps.items()}


@torch.no_grad()
def _statistics(attention_map: AttentionMap) -> dict[str, list[float]]:
    attention_map.prepare(entropy=True, topk=1)  # one pass for all statistics of rows
    counted = has_visible_key(attention_map)
    values = {
        "entropy": attention_map.entropy(),
        "normalized_entropy": attention_map.entropy(normalize=True),
        "sink": attention_map.sink().first_key,
    }
    return {name: [round(float(x), 6) for x in per_head(value, counted)] for name, value in values.items()}


def attention_summary(statistics: HeadStatistics) -> str:
    """Return a sentence that names the head with the lowest normalized entropy and the one with the highest sink."""

    def ranked(name: str) -> list[tuple[float, str]]:
        heads = ((layer, number, x) for layer, by_name in statistics.items() for number, x in enumerate(by_name[name]))
        return sorted((x, f"{layer} head {number}") for layer, number, x in heads)

    (low, narrow), (high, sink) = ranked("normalized_entropy")[0], ranked("sink")[-1]
    return f"lowest normalized entropy {low:.3f} ({narrow}), highest weight on the first token {high:.3f} ({sink})"
