"""How much does a database of its training text lower bard's loss?

The model is a nearest-neighbour language model (Khandelwal et al., "Generalization through Memorization", 2020) over every entry instead of the nearest ones. A
`uwaga.SoftDatabase` has an entry for each character of the training text: its key is bard's last hidden state there, and its value the character that came
next. With states h and the kernel of the paper, exp(-|h - k|^2 / t),

    p(next) = m softmax_j(-|h - k_j|^2 / t) [next = v_j] + (1 - m) p_bard(next)

-|h - k|^2 is 2 h.k - |k|^2 up to what all entries share, so that the key is (k, |k|^2), the query (2 h, -1), and the value one of 67 columns. t and m have the
least loss on the first tenth of the evaluated characters; the reported losses are on the other nine tenths, in nats a character. Hidden states come from windows
of 512 characters. UWAGA_DATA is the folder of tinyshakespeare.txt.
"""

import sys
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple, cast

import torch
from harness import Report, options, parse
from torch import Tensor
from torch.nn import functional

import uwaga
from uwaga import Ragged, SoftDatabase
from uwaga.train import Config, sources

WINDOW = 512
WINDOWS = 16  # that are read at once
TEMPERATURES = (2.0, 5.0, 10.0, 20.0, 40.0)
SHARES = torch.linspace(0, 0.95, 96)


class States(NamedTuple):
    """For N characters: the states that predict the next ones, bard's log-probabilities, and the next ones."""

    hidden: Tensor  # (N, D)
    log_probabilities: Tensor  # (N, V)
    following: Tensor  # (N,)


@torch.no_grad()
def states_of(model: Any, ids: Tensor) -> States:
    parts = []
    windows = list(ids.unfold(0, WINDOW + 1, WINDOW)) if len(ids) > WINDOW else [ids]
    for first in range(0, len(windows), WINDOWS):
        some = windows[first : first + WINDOWS]
        output = model(Ragged.from_list([window[:-1] for window in some]))
        hidden, logits = output.last_hidden_state.values, output.logits.values
        parts.append(States(hidden, logits.log_softmax(-1), torch.cat([window[1:] for window in some])))
        print(f"\r{first + len(some):,} of {len(windows):,} windows", end="", file=sys.stderr)
    print(file=sys.stderr)
    return States(*(torch.cat(tensors) for tensors in zip(*parts, strict=True)))


def remember(database: SoftDatabase, states: States, columns: int) -> None:
    for hidden, following in zip(states.hidden.split(65_536), states.following.split(65_536), strict=True):
        key = torch.cat((hidden, hidden.square().sum(-1, keepdim=True)), -1)
        database.append(key, functional.one_hot(following, columns).float())


def from_database(database: SoftDatabase, hidden: Tensor, following: Tensor, temperature: float) -> Tensor:
    """(N,): the probability of what follows by the database alone."""
    query = torch.cat((2 * hidden, -torch.ones(len(hidden), 1)), -1)
    parts = [database.attend(part, scale=1 / temperature, top=0).value for part in query.split(256)]
    return torch.cat(parts).gather(1, following[:, None])[:, 0]


def mixed_loss(stored: Tensor, of_model: Tensor, share: Tensor) -> Tensor:
    """(S,) for shares (S,)."""
    return -(share[:, None] * stored + (1 - share[:, None]) * of_model.exp()).log().mean(1)


if __name__ == "__main__":
    parser = options(__doc__, grid=False)
    parser.add_argument(
        "--entries", type=int, default=0, help="number of first characters to store; 0: the whole training text"
    )
    parser.add_argument(
        "--evaluated", type=int, default=4096, help="number of characters to evaluate, from the last tenth"
    )
    chosen = parse(parser)
    reader = uwaga.models.open("bard", dtype="float32")
    if chosen.quick:
        chosen.evaluated, plays = 200, "To be, or not to be: that is the question.\n" * 120
    else:
        data = Config.read(Path(__file__).parents[1] / "src" / "uwaga" / "train" / "recipes" / "bard.toml").data
        plays = sources.find(data.train[0], data).read_text()
    learned = plays[: len(plays) * 9 // 10]
    held_out = plays[len(learned) :][: chosen.evaluated + 1]
    ids, asked = (
        torch.tensor(reader.tokenizer.backend.encode(text).ids)
        for text in (learned[: chosen.entries or None], held_out)
    )
    headings = [
        "entries",
        "evaluated",
        "loss alone",
        "with the database",
        "t",
        "m",
        "ms a character, 256 at once",
        "one",
        "bard's ms",
    ]
    report = Report(chosen, "bard with a database of its training text", headings)
    model = cast(Any, reader)
    began = perf_counter()
    entries, evaluated = states_of(model, ids), states_of(model, asked)
    own_seconds = (perf_counter() - began) / (len(entries.hidden) + len(evaluated.hidden))
    width, columns = entries.hidden.shape[1], entries.log_probabilities.shape[1]
    of_model = evaluated.log_probabilities.gather(1, evaluated.following[:, None])[:, 0]
    count = len(of_model)
    with (
        tempfile.TemporaryDirectory() as folder,
        SoftDatabase.create(f"{folder}/db", key_width=width + 1, value_width=columns) as database,
    ):
        remember(database, entries, columns)
        tried = slice(0, count // 10)
        best: tuple[float, float, Tensor] | None = None
        for temperature in TEMPERATURES[: 2 if chosen.quick else None]:
            stored = from_database(database, evaluated.hidden[tried], evaluated.following[tried], temperature)
            losses = mixed_loss(stored, of_model[tried], SHARES)
            if best is None or float(losses.min()) < best[0]:
                best = (float(losses.min()), temperature, SHARES[losses.argmin()])
        assert best is not None
        _, temperature, share = best
        rest = slice(count // 10, count)
        began = perf_counter()
        stored = from_database(database, evaluated.hidden[rest], evaluated.following[rest], temperature)
        together = (perf_counter() - began) / len(stored)
        began = perf_counter()
        alone = from_database(database, evaluated.hidden[rest][:3], evaluated.following[rest][:3], temperature)
        for at in range(3):
            one = from_database(
                database, evaluated.hidden[rest][at : at + 1], evaluated.following[rest][at : at + 1], temperature
            )
            assert torch.equal(one, alone[at : at + 1])
        single = (perf_counter() - began) / 4
        loss = float(mixed_loss(stored, of_model[rest], share[None]))
        report.row(
            f"{len(database):,}", f"{len(stored):,}", f"{float(-of_model[rest].mean()):.4f}", f"{loss:.4f}", f"{temperature:g}",
            f"{float(share):.2f}", f"{together * 1e3:.3g}", f"{single * 1e3:.3g}", f"{own_seconds * 1e3:.2g}",
        )  # fmt: skip
