"""`uwaga.models.generate`: greedy search, sampling and beam search over ragged prompts, one token at a time for every row, with a key-value cache.

The rules by which beam search keeps texts and ends rows are those of transformers (GenerationMixin._beam_search), so that both find the
same texts. Letters: R rows, W beams of a row, C candidates of a row, V vocabulary, T new tokens, N packed tokens.
"""

import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from typing import Annotated, Any, cast

import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor

from uwaga._base.arguments import check
from uwaga._base.options import Integer, OptionError, Positive, Real, Size, Switch, options, read
from uwaga.models.model import Decoding, Model
from uwaga.models.tokenizers.loading import of_model
from uwaga.models.tokenizers.tokenizer import Tokenizer, check_text
from uwaga.nn.operand import check_ids, one_per_row
from uwaga.ops.ragged import Ragged

Ids = Sequence[Sequence[int]] | Ragged
_NONE = -torch.inf  # the score of a beam that holds no text
# Options that have no effect without do_sample.
_SAMPLING = ("temperature", "top_k", "top_p", "seed")


@options
class GenerationOptions:
    """The options of `generate` that decide which tokens come next. None and False: not given.

    Raises:
        ValueError: an option of a wrong type or value, or one that has no effect with the others.
    """

    max_new_tokens: Size
    do_sample: Switch
    temperature: Positive | None
    top_k: Size | None
    top_p: Annotated[Real, Gt(0), Le(1)] | None
    num_beams: Size
    seed: Annotated[Integer, Ge(0), Le(2**64 - 1)] | None
    eos_token_ids: tuple[Any, ...]

    def __post_init__(self) -> None:
        is_one_search = not self.do_sample or self.num_beams == 1
        check(is_one_search, "generate: do_sample=True and num_beams > 1 exclude each other")
        for name in _SAMPLING:
            is_used = self.do_sample or getattr(self, name) is None
            check(is_used, f"generate: {name} has no effect without do_sample=True")


@torch.no_grad()
def generate(
    model: Model,
    prompts: Sequence[str] | Ids,
    *,
    max_new_tokens: int = 20,
    do_sample: bool = False,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    num_beams: int = 1,
    eos_token_ids: int | Sequence[int] | None = None,
    seed: int | None = None,
    streamer: Any = None,
) -> list[str] | list[list[int]] | Ragged:
    """Generate new tokens after each prompt, by greedy search, sampling or beam search.

    Prompts of different lengths are packed without padding, and a finished row leaves the batch. The tokens are those that
    transformers generates for each prompt alone, unless rounding decides between two tokens.

    Args:
        model: a model with a decoder, in evaluation mode; an encoder-decoder reads the prompts with its encoder.
        prompts: texts, for a model that `uwaga.models.load` returned, whose tokenizer is used; or token ids as a list of lists, or as
            Ragged (N,).
        max_new_tokens: the largest number of new tokens of a prompt.
        do_sample: sample each token; else take the most probable one.
        temperature: divides the logits before sampling; 1 by default.
        top_k: sample from the k most probable tokens; all by default.
        top_p: sample from the most probable tokens that together have this probability; 1 by default.
        num_beams: the number of beams; 1 for no beam search. A finished text is scored by its mean log probability.
        eos_token_ids: ids of tokens that end a text, which are part of the result; None for the model's own, () for no such tokens.
        seed: the seed of sampling; the same seed and prompt give the same text in any batch. None: a seed from PyTorch's generator.
        streamer: an object with put(ids) and end(), such as transformers' TextStreamer, which receives the prompt and then each new
            token; for a single prompt without beam search.

    Returns:
        The new tokens of each prompt, in the form of the prompts: texts, lists or Ragged (N,).

    Warns:
        UserWarning: a text has characters that the model's vocabulary lacks.

    Raises:
        ValueError: a model that does not continue texts or is in training mode; an option of a wrong type or value, or without effect with
            the other options; ids outside the vocabulary, an empty prompt, more tokens than the model has positions; logits that contain
            NaN; texts for a model without a directory.
        CheckpointError: texts for a model whose directory has no tokenizer that fits.

    >>> from uwaga.models import Transformer, config
    >>> model = Transformer(config("gpt2", vocab_size=20, d_model=8, num_layers=1, num_heads=2, d_ff=16, max_position_embeddings=10)).eval()
    >>> [len(ids) for ids in generate(model, [[3, 4, 5], [6]], max_new_tokens=4)]
    [4, 4]
    >>> from uwaga.models.checkpoints.load_save import load
    >>> generate(load("speller"), ["attention", "cat"])
    ['AH T EH N SH AH N', 'K AE T']
    """
    if not isinstance(model, Model) or not model.continues:
        kind = getattr(getattr(model, "config", None), "model_type", None)
        named = type(model).__name__ + (f" ({kind})" if isinstance(kind, str) else "")
        raise ValueError(f"generate: {named} does not continue texts; a uwaga.models.Transformer with a decoder does")
    check(not isinstance(prompts, str), "generate: prompts must be a list, also for one text: [text]")
    writer: Tokenizer | None = None
    if isinstance(prompts, Sequence) and prompts and all(isinstance(prompt, str) for prompt in prompts):
        reader, writer = (of_model(model, decoder=which) for which in (False, True))
        prompts = _ids_of_texts(cast(Sequence[str], prompts), reader)
    ends = (eos_token_ids,) if isinstance(eos_token_ids, int) else tuple(eos_token_ids or ())
    options = _options(
        max_new_tokens=max_new_tokens,
        do_sample=do_sample,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        num_beams=num_beams,
        seed=seed,
        eos_token_ids=model.config.eos_token_ids if eos_token_ids is None else ends,
    )
    packed = _as_ragged(cast(Ids, prompts), next(model.parameters()).device)
    check_ids("generate", "prompts", packed, model.config.vocab_size)
    for rule in _broken_rules(model, packed, options, ends, streamer):
        raise ValueError(f"generate: {rule}")
    tokens = packed = packed.with_values(packed.values.long())
    if len(packed):
        decoding = model.decoding(packed, max_new_tokens)
        if num_beams > 1:
            tokens = beam_search(decoding, options)
        else:
            tokens = generate_tokens(decoding, packed, options, streamer)
    if isinstance(prompts, Ragged):
        return tokens
    written = [row.tolist() for row in tokens.to_list()]
    return written if writer is None else [writer.decode(row) for row in written]


def _options(**values: object) -> GenerationOptions:
    try:
        result: GenerationOptions = read(GenerationOptions, values)
    except OptionError as error:
        raise ValueError(f"generate: {error}") from None
    return result


def _ids_of_texts(texts: Sequence[str], tokenizer: Tokenizer) -> list[list[int]]:
    for number, text in enumerate(texts):
        check_text(f"generate: prompt {number}", text)
        if unknown := tokenizer.unknown_characters(text):
            warnings.warn(f"generate: prompt {number}: {unknown_text(unknown)}", stacklevel=4)
    return tokenizer.with_special_tokens(texts)


def unknown_text(unknown: Sequence[str]) -> str:
    """Return what a message says of characters that a vocabulary lacks; ten of them at most."""
    shown = ", ".join(map(repr, unknown[:10])) + (f" and {len(unknown) - 10} more" if len(unknown) > 10 else "")
    return f"the model has no token for {shown}: it cannot tell what is written there"


def _as_ragged(prompts: Ids, device: torch.device) -> Ragged:
    """Return the ids of all prompts, Ragged (N,)."""
    if isinstance(prompts, Ragged):
        return prompts
    if not isinstance(prompts, Sequence) or not all(map(_is_ids, prompts)):
        raise ValueError("generate: prompts must be a list of texts or of lists of ids, or Ragged")
    if not prompts:
        return Ragged(*(torch.zeros(count, dtype=torch.int64, device=device) for count in (0, 1)))
    return Ragged.from_list([torch.as_tensor(ids, dtype=torch.int64, device=device) for ids in prompts])


def _is_ids(prompt: object) -> bool:
    if isinstance(prompt, Tensor):
        return prompt.dim() == 1 and not prompt.dtype.is_floating_point
    return isinstance(prompt, Sequence) and all(type(number) is int for number in prompt)


def _broken_rules(
    model: Model,
    prompts: Ragged,
    options: GenerationOptions,
    ends: Sequence[object],
    streamer: Any,
) -> Iterator[str]:
    if model.training:
        yield "the model is in training mode, with dropout; call model.eval() first"
    for number in ends:
        if type(number) is not int or not 0 <= number < model.config.output_vocab_size:
            yield f"eos_token_ids must be an id from 0 to {model.config.output_vocab_size - 1}, not {number!r}"
    for number in (prompts.lengths == 0).nonzero().flatten().tolist():
        yield f"prompt {number} is empty"
    most, is_causal, new = model.config.max_tokens, model.config.is_causal, options.max_new_tokens
    read = prompts.max_length if is_causal else 1
    needed = read + new - 1  # a position for every token that is read: all but the last new one
    if most is not None and len(prompts) and needed > most:
        prompt = f"prompt {int(prompts.lengths.argmax())} of {read} tokens and " if is_causal else ""
        fits = most - read + 1
        way_out = f"max_new_tokens may be at most {fits}" if fits > 0 else f"shorten it to {most} tokens or fewer"
        yield f"{prompt}{new} new tokens need {needed} positions, but the model has {most}; {way_out}"
    if streamer is not None and options.num_beams > 1:
        yield "a streamer cannot be used with a beam search, whose tokens are known only at its end"
    if streamer is not None and len(prompts) != 1:
        yield f"a streamer takes one prompt, not {len(prompts)}"


# The next token of each row, (R,), from logits (R, V), the number of the step, and which rows these are, (R,).
NextToken = Callable[[Tensor, int, Tensor], Tensor]


def generate_tokens(decoding: Decoding, prompts: Ragged, options: GenerationOptions, streamer: Any) -> Ragged:
    """Return the new tokens of each row, the end token included, Ragged (N,). A row that has ended leaves the batch."""
    first, cache, logits_of = decoding
    next_token = sampler(options, prompts) if options.do_sample else lambda logits_RV, step, rows: logits_RV.argmax(-1)
    device, count = first.values.device, len(first)
    eos = torch.tensor(options.eos_token_ids, dtype=torch.int64, device=device)
    tokens_RT = torch.zeros(count, options.max_new_tokens, dtype=torch.int64, device=device)
    length_R = torch.zeros(count, dtype=torch.int64, device=device)
    rows = torch.arange(count, device=device)
    if streamer is not None:
        streamer.put(first.values.cpu())
    logits_RV = logits_of(first)
    for step in range(options.max_new_tokens):
        token_R = next_token(logits_RV, step, rows)
        tokens_RT[rows, step], length_R[rows] = token_R, step + 1
        if streamer is not None:
            streamer.put(token_R.cpu())
        continues = ~torch.isin(token_R, eos)
        if step + 1 == options.max_new_tokens or not bool(continues.any()):
            break
        if not bool(continues.all()):
            cache.reorder(continues.nonzero().squeeze(-1))
            rows, token_R = rows[continues], token_R[continues]
        logits_RV = logits_of(one_per_row(token_R))
    if streamer is not None:
        streamer.end()
    return Ragged.from_padded(tokens_RT, length_R)


def sampler(options: GenerationOptions, prompts: Ragged) -> NextToken:
    """Return a function that samples tokens from the probabilities that `process_logits` leaves, by their cumulative sums.

    The random numbers of a prompt are a function of the seed, the prompt, and how many equal prompts come before it. Other
    prompts in the batch and the position among them do not change them.
    """
    seed = int(torch.randint(2**63 - 1, ())) if options.seed is None else options.seed
    # One number in [0, 1) for each token; those of a longer result begin with those of a shorter one.
    generators = (torch.Generator().manual_seed(row_seed) for row_seed in _seeds(seed, prompts))
    uniform = [torch.rand(options.max_new_tokens, generator=generator, dtype=torch.float64) for generator in generators]
    uniform_RT = torch.stack(uniform).to(prompts.values.device)

    def sample(logits_RV: Tensor, step: int, rows: Tensor) -> Tensor:
        return inverse_cdf(process_logits(logits_RV, options).double().softmax(-1), uniform_RT[rows, step])

    return sample


def process_logits(logits_RV: Tensor, options: GenerationOptions) -> Tensor:
    """Apply temperature, top-k and top-p, with the bits of transformers' logits processors.

    Excluded tokens get -inf. Tokens as probable as the k-th are kept. Top-p is nucleus sampling (Holtzman et al., "The Curious Case of
    Neural Text Degeneration", 2020).
    """
    x = logits_RV if options.temperature is None else logits_RV / options.temperature
    if options.top_k is not None:
        least_R1 = x.topk(min(options.top_k, x.shape[-1])).values[..., -1:]
        x = x.masked_fill(x < least_R1, -torch.inf)
    if options.top_p is not None and options.top_p < 1.0:
        rising, order = x.sort()
        is_rest = rising.softmax(-1).cumsum(-1) <= 1.0 - options.top_p
        is_rest[..., -1] = False
        x = x.masked_fill(is_rest.scatter(-1, order, is_rest), -torch.inf)
    return x


def inverse_cdf(probability_RV: Tensor, uniform_R: Tensor) -> Tensor:
    """Return the first token whose cumulative probability is above uniform_R, 0 <= uniform_R < 1.

    >>> inverse_cdf(torch.tensor([[0.5, 0.0, 0.5], [0.5, 0.0, 0.5]]).double(), torch.tensor([0.49, 0.5]).double())
    tensor([0, 2])
    """
    sum_RV = probability_RV.cumsum(-1)
    return torch.searchsorted(sum_RV / sum_RV[:, -1:], uniform_R[:, None], right=True).squeeze(-1)


def _seeds(seed: int, prompts: Ragged) -> list[int]:
    """Return the seed of each prompt."""
    before: Counter[bytes] = Counter()
    seeds = []
    for ids in prompts.to_list():
        text = ids.cpu().numpy().tobytes()
        hashed = blake2b(text, digest_size=8, key=seed.to_bytes(8, "little") + before[text].to_bytes(8, "little"))
        before[text] += 1
        seeds.append(int.from_bytes(hashed.digest(), "little"))
    return seeds


class Beams:
    """The beams of R rows: running texts, and the best finished ones."""

    def __init__(self, rows: int, options: GenerationOptions, device: torch.device) -> None:
        beams = options.num_beams
        self.options, self.step = options, 0
        self.eos = torch.tensor(options.eos_token_ids, dtype=torch.int64, device=device)
        self.running_RWT = torch.zeros(rows, beams, options.max_new_tokens, dtype=torch.int64, device=device)
        # All beams of a row start as the same text: only one is continued.
        self.running_score_RW = torch.full((rows, beams), _NONE, device=device)
        self.running_score_RW[:, 0] = 0.0
        self.done_RWT, self.done_score_RW = self.running_RWT.clone(), torch.full_like(self.running_score_RW, _NONE)
        self.done_length_RW = torch.zeros(rows, beams, dtype=torch.int64, device=device)

    def advance(self, logits_RWV: Tensor) -> Tensor:
        """Add one token to every beam. Returns (R, W) int64: for each new beam, the previous beam of its row that it continues."""
        beams, vocabulary = logits_RWV.shape[1:]
        score_RWV = logits_RWV.log_softmax(-1) + self.running_score_RW[..., None]
        # Enough candidates that W of them do not end, even if every end token is a candidate of every beam.
        count = min(max(2, 1 + len(self.eos)) * beams, beams * vocabulary)
        score_RC, place_RC = score_RWV.flatten(1).topk(count)
        beam_RC, token_RC = place_RC // vocabulary, place_RC % vocabulary
        text_RCT = _taken(self.running_RWT, beam_RC)
        text_RCT[:, :, self.step] = token_RC
        self.step += 1
        has_ended_RC = torch.isin(token_RC, self.eos)
        if self.step == self.options.max_new_tokens:
            has_ended_RC = torch.ones_like(has_ended_RC)
        self._keep_ended(text_RCT, score_RC, has_ended_RC)

        self.running_score_RW, chosen_RW = score_RC.masked_fill(has_ended_RC, _NONE).topk(beams)
        self.running_RWT = _taken(text_RCT, chosen_RW)
        return beam_RC.gather(1, chosen_RW)

    def _keep_ended(self, text_RCT: Tensor, score_RC: Tensor, has_ended_RC: Tensor) -> None:
        """Keep the best W of the finished texts and of those among the best W candidates that finish now."""
        beams = self.done_score_RW.shape[1]
        is_best_C = torch.arange(score_RC.shape[1], device=score_RC.device) < beams
        ended_RC = (score_RC / self.step).masked_fill(~(has_ended_RC & is_best_C), _NONE)
        self.done_score_RW, chosen_RW = torch.cat((self.done_score_RW, ended_RC), 1).topk(beams)
        lengths = torch.cat((self.done_length_RW, torch.full_like(score_RC, self.step, dtype=torch.int64)), 1)
        self.done_length_RW = lengths.gather(1, chosen_RW)
        self.done_RWT = _taken(torch.cat((self.done_RWT, text_RCT), 1), chosen_RW)

    def continues(self) -> Tensor:
        """Return whether each row may still find a better text than its worst finished one, (R,) bool."""
        could_R = self.running_score_RW[:, 0] / self.step > self.done_score_RW.amin(1)
        return could_R if self.step < self.options.max_new_tokens else torch.zeros_like(could_R)

    def best(self) -> tuple[Tensor, Tensor]:
        """Return the tokens of the best finished text of each row, (R, T), and their number, (R,)."""
        return self.done_RWT[:, 0], self.done_length_RW[:, 0]

    def keep(self, rows: Tensor) -> None:
        """Drop all other rows."""
        for name in ("running_RWT", "running_score_RW", "done_RWT", "done_score_RW", "done_length_RW"):
            setattr(self, name, getattr(self, name)[rows])


def beam_search(decoding: Decoding, options: GenerationOptions) -> Ragged:
    """Return the new tokens of the best text of each row, the end token included, Ragged (N,)."""
    first, cache, logits_of = decoding
    device, count, beams = first.values.device, len(first), options.num_beams
    tokens_RT = torch.zeros(count, options.max_new_tokens, dtype=torch.int64, device=device)
    length_R = torch.zeros(count, dtype=torch.int64, device=device)
    rows, result = torch.arange(count, device=device), Beams(count, options, device)
    # The prompts are read once; the first reordering of the cache copies them to the beams.
    logits_RWV, width = logits_of(first)[:, None].expand(-1, beams, -1), 1
    while True:
        beam_RW = result.advance(logits_RWV)
        continues = result.continues()
        tokens_RT[rows[~continues]], length_R[rows[~continues]] = (x[~continues] for x in result.best())
        if not bool(continues.any()):
            return Ragged.from_padded(tokens_RT, length_R)
        first_R1 = torch.arange(len(rows), device=device)[:, None] * width
        cache.reorder((first_R1 + beam_RW.clamp(max=width - 1))[continues].flatten())
        result.keep(continues)
        rows, width = rows[continues], beams
        token_R = result.running_RWT[:, :, result.step - 1].flatten()
        logits_RWV = logits_of(one_per_row(token_R)).unflatten(0, (-1, beams))


def _taken(text_RWT: Tensor, beam_RC: Tensor) -> Tensor:
    """Return a copy of the texts of the listed beams, (R, C, T)."""
    return text_RWT.gather(1, beam_RC[..., None].expand(-1, -1, text_RWT.shape[2]))
