"""What do attn_implementation="uwaga" and pack_linear cost or save in a step of generation, one row or many, padded or not?

The models have random weights in the shapes of a small GPT-2, GPT-2 itself and a Llama with grouped heads, and write greedily by transformers' own `generate`.
Three sides take turns in one process: attention and linear maps by uwaga, attention only, and attn_implementation="sdpa". A step reads one token a row, so it
mostly reads weights; for the small model, the time that a call takes in Python shows. The prompts of a padded batch are padded on the left, evenly from 0 to
`--padding` tokens.
"""

from importlib.util import find_spec

import torch
from cases import OURS, THEIRS
from harness import Report, need_agreement, options, parse, some_of, summary
from timing import Side, compare
from torch import nn

HEADINGS = ("model", "rows", "padding", "prompt", "new", "ratio", "of attention alone", "uwaga ms/step", "sdpa ms/step")
MODELS = {
    "small GPT-2": ("gpt2", {"n_embd": 256, "n_head": 4, "n_layer": 6}),
    "GPT-2": ("gpt2", {}),
    "small Llama": (
        "llama",
        {
            "hidden_size": 512,
            "intermediate_size": 1536,
            "num_hidden_layers": 8,
            "num_attention_heads": 8,
            "num_key_value_heads": 2,
        },
    ),
}
TINY = {"tiny GPT-2": ("gpt2", {"n_embd": 32, "n_head": 4, "n_layer": 2})}
ATTENTION = "attention"
BATCHES = ((1, False), (8, False), (8, True))


def models(kind: str, sizes: dict[str, int]) -> dict[str, nn.Module]:
    """Return one set of weights for both sides."""
    from transformers import AutoConfig, AutoModelForCausalLM

    from uwaga.integrations import pack_linear, register_with_transformers

    register_with_transformers()
    torch.manual_seed(0)
    special = {"bos_token_id": 0, "eos_token_id": None, "pad_token_id": 1}
    config = AutoConfig.for_model(kind, vocab_size=2000, **special, **sizes)
    made = {
        side: AutoModelForCausalLM.from_config(config, attn_implementation=name).eval()
        for side, name in ((OURS, "uwaga"), (ATTENTION, "uwaga"), (THEIRS, "sdpa"))
    }
    for side in (OURS, ATTENTION):
        made[side].load_state_dict(made[THEIRS].state_dict(), assign=True)
    pack_linear(made[OURS])
    return made


def sides(both: dict[str, nn.Module], rows: int, prompt: int, padding: int, new: int) -> dict[str, Side]:
    ids = torch.randint(2, 2000, (rows, prompt), generator=torch.Generator().manual_seed(0))
    mask = (torch.arange(prompt) >= torch.linspace(0, padding, rows).long()[:, None]).long()
    asked = {"attention_mask": mask, "max_new_tokens": new, "do_sample": False}
    made = {name: lambda model=model: model.generate(ids, **asked) for name, model in both.items()}
    logits = (both[name](ids, attention_mask=mask).logits[mask.bool()] for name in (OURS, THEIRS))
    need_agreement(*logits, roundings=64)  # a dozen layers and the vocabulary
    return made


@torch.no_grad()
def main() -> None:
    parser = options(__doc__, grid=False)
    parser.add_argument("--models", type=some_of(MODELS), default=list(MODELS), help="which models")
    parser.add_argument("--prompt", type=int, default=64, help="number of tokens before the first step")
    parser.add_argument("--padding", type=int, default=20, help="padding of the most padded row, in tokens")
    parser.add_argument("--new", type=int, default=48, help="number of steps")
    chosen = parse(parser)
    report = Report(chosen, "Generation with transformers, uwaga against sdpa", HEADINGS)
    if find_spec("transformers") is None:
        report.row("transformers is not installed", *[""] * (len(HEADINGS) - 1))
        return
    sizes_of = TINY if chosen.quick else {name: MODELS[name] for name in chosen.models}
    ratios, new = [], 4 if chosen.quick else chosen.new
    for name, (kind, sizes) in sizes_of.items():
        both = models(kind, sizes)
        for rows, is_padded in BATCHES:
            padding = chosen.padding if is_padded else 0
            measured = compare(sides(both, rows, chosen.prompt, padding, new), seconds=chosen.seconds)
            ratios.append(measured.ratio(THEIRS, to=OURS))
            steps = [f"{measured.seconds(side) / new * 1e3:.3g}" for side in (OURS, THEIRS)]
            alone = f"{measured.ratio(THEIRS, to=ATTENTION):.2f}"
            report.row(
                name, str(rows), f"0 to {padding}", str(chosen.prompt), str(new), f"{ratios[-1]:.2f}", alone, *steps
            )  # fmt: skip
    report.say(f"\n{summary(ratios)}.\n")


if __name__ == "__main__":
    main()
