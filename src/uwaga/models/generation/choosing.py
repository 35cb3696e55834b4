"""Which token comes next: the likeliest, or one that is drawn. Letters: R rows, V vocabulary, T new tokens."""

from collections import Counter
from collections.abc import Callable
from hashlib import blake2b

import torch
from torch import Tensor

from uwaga.models.generation.options import Options
from uwaga.ops.ragged import Ragged

# The next token of each row, (R,), from logits (R, V), the number of the step, and which rows these are, (R,).
Choose = Callable[[Tensor, int, Tensor], Tensor]


def chooser(options: Options, prompts: Ragged) -> Choose:
    """How to choose, by the options."""
    return sampler(options, prompts) if options.do_sample else greedy


def greedy(logits_RV: Tensor, step: int, rows: Tensor) -> Tensor:
    """The likeliest; the first of several that are equally likely."""
    return logits_RV.argmax(-1)


def sampler(options: Options, prompts: Ragged) -> Choose:
    """Tokens drawn from the distributions that `likely` leaves.

    What is drawn for a prompt is a function of the seed, the prompt, and how many equal prompts come before it: other
    prompts in the batch have no part in it, nor has where it stands among them.
    """
    seed = int(torch.randint(2**63 - 1, ())) if options.seed is None else options.seed
    share_RT = torch.stack([_shares(each, options.max_new_tokens) for each in _seeds(seed, prompts)])
    share_RT = share_RT.to(prompts.values.device)

    def draw(logits_RV: Tensor, step: int, rows: Tensor) -> Tensor:
        return at_share(likely(logits_RV, options).double().softmax(-1), share_RT[rows, step])

    return draw


def likely(logits_RV: Tensor, options: Options) -> Tensor:
    """The logits at a temperature, with -inf for all but the k likeliest tokens, and then for all but the likeliest ones
    that together reach a probability of top_p (Holtzman et al., "The Curious Case of Neural Text Degeneration", 2020). As in
    transformers, to the bit: tokens as likely as the k-th stay too."""
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


def at_share(chance_RV: Tensor, share_R: Tensor) -> Tensor:
    """The token in which the running sum of the chances passes a share of their total, 0 <= share < 1.

    >>> at_share(torch.tensor([[0.5, 0.0, 0.5], [0.5, 0.0, 0.5]]).double(), torch.tensor([0.49, 0.5]).double())
    tensor([0, 2])
    """
    sum_RV = chance_RV.cumsum(-1)
    return torch.searchsorted(sum_RV / sum_RV[:, -1:], share_R[:, None], right=True).squeeze(-1)


def _seeds(seed: int, prompts: Ragged) -> list[int]:
    """One number per prompt."""
    before: Counter[bytes] = Counter()
    seeds = []
    for ids in prompts.to_list():
        text = ids.cpu().numpy().tobytes()
        hashed = blake2b(text, digest_size=8, key=seed.to_bytes(8, "little") + before[text].to_bytes(8, "little"))
        before[text] += 1
        seeds.append(int.from_bytes(hashed.digest(), "little"))
    return seeds


def _shares(seed: int, tokens: int) -> Tensor:
    """(T,) float64 in [0, 1): one number per token, the first of them whatever T is."""
    return torch.rand(tokens, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
