"""Which heads follow what a pronoun refers to: those whose weight moves when a word changes that decides it.

The sentences are pairs as in Levesque et al., "The Winograd Schema Challenge" (2012): they differ in one word, and with it in what the pronoun
means. That single heads of BERT follow coreference is from Clark et al., "What Does BERT Look At?" (2019, section 4.3), measured there against
annotated text; here it is what changes with the word, which no habit of looking at subjects or near nouns can give.

Letters: H heads, K keys.
"""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from uwaga._base.arguments import check
from uwaga.inspect.heads.labels import MIN_QUERIES
from uwaga.inspect.heads.table import HeadTable
from uwaga.inspect.run_text import RecordError
from uwaga.models.opening import open as open_model

if TYPE_CHECKING:
    from uwaga.models.model import Model

LEAST_SHIFT = 0.03  # the least mean shift of a labelled head
MOVES = 0.05  # the least shift of a pair that counts as right, or below minus this as wrong
LEAST_CHANCE = 0.05  # that heads without such a habit have as many right pairs, over all heads of the model


def _place(text: str, word: str) -> tuple[int, int]:
    """The characters [start, end) of the first time that the word stands alone."""
    import regex

    match = regex.search(rf"(?<!\w){regex.escape(word)}(?!\w)", text)
    if match is None:
        raise ValueError(f"WinogradPair: there is no word {word!r} in {text!r}")
    return match.span()


@dataclass(frozen=True, slots=True)
class WinogradPair:
    """Two sentences that differ in one word, and with it in what a pronoun refers to.

    text: with {} where the words go.
    words: with the first one the pronoun means the first candidate, with the second one the second.
    pronoun, candidates: words of the text; of a word that comes twice the first is meant.

    Raises:
        ValueError: a text without {}, or without one of the words.
    """

    text: str
    words: tuple[str, str]
    pronoun: str
    candidates: tuple[str, str]

    def __post_init__(self) -> None:
        count = self.text.count("{}")
        check(count == 1, f"WinogradPair: the text must have one {{}}, not {count}: {self.text!r}")
        for word in (self.pronoun, *self.candidates):
            _place(self.text, word)


# The text, the words for {}, the pronoun and the candidates.
_TABLE = """
    The trophy doesn't fit into the suitcase because it is too {}. | large | small | it | trophy | suitcase
    The animal didn't cross the street because it was too {}. | tired | wide | it | animal | street
    The ball broke the table because it was made of {}. | steel | glass | it | ball | table
    The cat could not pass the door because it was too {}. | fat | narrow | it | cat | door
    The man could not lift the boy because he was too {}. | weak | heavy | he | man | boy
    The teacher thanked the girl because she had {} help. | received | given | she | teacher | girl
    The truck did not pass under the bridge because it was too {}. | high | low | it | truck | bridge
    The dog chased the ball until it was too {}. | tired | far | it | dog | ball
    The bottle was poured into the cup until it was {}. | empty | full | it | bottle | cup
    The sack of rice was placed below the box, so it had to be moved {}. | up | away | it | sack | box
    The lawyer asked the judge a question, but he was reluctant to {} it. | repeat | answer | he | lawyer | judge
    The bird flew past the tree while it was {}. | singing | blooming | it | bird | tree
    The fish ate the worm because it was {}. | hungry | tasty | it | fish | worm
    The child could not eat the apple because it was too {}. | young | sour | it | child | apple
    The boat could not cross the river because it was too {}. | old | wild | it | boat | river
    The car could not leave the garage because it was {}. | broken | locked | it | car | garage
    The man put the phone on the shelf because it was {}. | charging | empty | it | phone | shelf
    The river flooded the field because it was so {}. | full | flat | it | river | field
    The horse kicked the door because it was {}. | angry | closed | it | horse | door
    The soup burned the tongue because it was too {}. | hot | sensitive | it | soup | tongue
    The king feared the knight because he was so {}. | old | strong | he | king | knight
    The nurse called the doctor because she was {}. | worried | away | she | nurse | doctor
    The wolf followed the sheep because it was {}. | hungry | slow | it | wolf | sheep
    The hammer cracked the mirror because it was so {}. | hard | thin | it | hammer | mirror
    The bus waited at the station because it was {}. | early | crowded | it | bus | station
    The boy could not hear the singer because he was {}. | deaf | quiet | he | boy | singer
    The snake could not swallow the frog because it was too {}. | small | big | it | snake | frog
    The arrow missed the target because it was too {}. | bent | distant | it | arrow | target
    The knife could not cut the bread because it was too {}. | blunt | hard | it | knife | bread
    The piano did not fit through the window because it was too {}. | wide | narrow | it | piano | window
    The shirt did not fit into the drawer because it was too {}. | thick | full | it | shirt | drawer
    The baby could not reach the toy because it was too {}. | young | high | it | baby | toy
    The student understood the teacher because he {} well. | listened | explained | he | student | teacher
    The mother sang to the daughter until she was {}. | hoarse | asleep | she | mother | daughter
    The thief escaped from the guard because he was {}. | quick | sleeping | he | thief | guard
    The plane could not land on the island because it was too {}. | damaged | small | it | plane | island
    The mouse hid from the cat because it was {}. | afraid | hunting | it | mouse | cat
    The bee left the flower because it was {}. | tired | dry | it | bee | flower
    The key did not open the lock because it was {}. | bent | rusty | it | key | lock
    The ladder did not reach the roof because it was too {}. | short | tall | it | ladder | roof
"""
PAIRS = tuple(
    WinogradPair(text, (first, second), pronoun, (one, other))
    for text, first, second, pronoun, one, other in (row.strip().split(" | ") for row in _TABLE.strip().splitlines())
)


def coreference_heads(model: "str | os.PathLike[str] | Model", pairs: Sequence[WinogradPair] = PAIRS) -> HeadTable:
    """Measure how far each head follows the meaning of a pronoun, over pairs of sentences.

    Let a_t(c) be the weight that the pronoun gives to the tokens of candidate c in sentence t, the mean over the pronoun's tokens. The shift of a
    pair is ((a_1(c_1) - a_1(c_2)) - (a_2(c_1) - a_2(c_2))) / 2: 1 if all weight goes to what is meant, 0 if the changed word changes nothing.
    A head is labelled "coreference" where the mean shift is at least 0.03, at least five pairs shift by 0.05 or more, and so many more of them
    the right way than the wrong one that chance would do as well in less than one model of twenty (a sign test with Bonferroni's correction
    for the number of heads). In a decoder a pronoun does not see the words after it, and no shift is possible there. All sentences are
    one ragged batch. An encoder-decoder's encoder heads are tried.

    Args:
        model: as in `uwaga.view` of a text: a bundled model, a directory, a model id of the Hugging Face Hub; or a model that `uwaga.models.open` returned.
        pairs: pairs of sentences in the model's language; `PAIRS` are English.

    Returns:
        Columns kind, layer, head, label, shift (the mean), right and wrong (how many pairs shift so by 0.05 or more), of (how many there are).

    Raises:
        ValueError: no pairs; a model that cannot be read (CheckpointError), that takes fewer tokens than a sentence has, or whose tokenizer does
            not say which characters a token stands for (RecordError).
    """
    check(pairs, "coreference_heads: there are no pairs")
    reader = open_model(model, dtype="float32") if isinstance(model, str | os.PathLike) else model
    shifts = _shifts(reader, pairs)
    total = sum(shift_PH.shape[1] for shift_PH in shifts.values())
    rows = []
    for (kind, layer), values in shifts.items():
        for head, shift in enumerate(values.double().unbind(1)):
            right, wrong = int((shift >= MOVES).sum()), int((shift <= -MOVES).sum())
            label = "coreference" if _follows(shift, right, wrong, total) else ""
            found = {"shift": float(shift.mean()), "right": right, "wrong": wrong, "of": len(pairs)}
            rows.append({"kind": kind, "layer": layer, "head": head, "label": label, **found})
    return HeadTable.of_rows(rows)


def _shifts(reader: "Model", pairs: Sequence[WinogradPair]) -> dict[tuple[str, int], Tensor]:
    """(pairs, H) per layer, from one ragged batch."""
    from uwaga.inspect.watching import watch

    texts = [pair.text.format(word) for pair in pairs for word in pair.words]
    encodings = reader.tokenizer.encode(texts, with_offsets=True)
    before, after = reader.tokenizer.prefix_ids, reader.tokenizer.suffix_ids
    ids = [[*before, *encoding.ids, *after] for encoding in encodings]
    longest, room = max(map(len, ids)), reader.config.max_tokens
    if room is not None and longest > room:
        raise RecordError(f"coreference_heads: a sentence has {longest} tokens, and {reader.title} takes {room}")
    with watch(reader) as recording, torch.no_grad():
        reader.read_batch(ids)
    kind = "encoder" if any(kind == "encoder" for kind, _ in recording.maps) else "decoder"
    leans: dict[tuple[str, int], list[Tensor]] = {name: [] for name in recording.maps if name[0] == kind}
    for number, (text, encoding) in enumerate(zip(texts, encodings, strict=True)):
        pair = pairs[number // 2]
        places = [_tokens(reader, encoding.offsets, text, word) for word in (pair.pronoun, *pair.candidates)]
        pronoun, first, second = ([len(before) + at for at in tokens] for tokens in places)
        for name, value in leans.items():
            m = recording.maps[name].select(number)
            weights_HK = m[:, pronoun].mean(1)
            value.append(weights_HK[:, first].sum(-1) - weights_HK[:, second].sum(-1))
    return {name: (torch.stack(values[::2]) - torch.stack(values[1::2])) / 2 for name, values in leans.items()}


def _tokens(reader: "Model", offsets: Sequence[tuple[int, int]], text: str, word: str) -> list[int]:
    """The tokens that stand for characters of a word."""
    first, stop = _place(text, word)
    results = [at for at, (start, end) in enumerate(offsets) if start < stop and end > first and end > start]
    if not results:
        raise RecordError(
            f"coreference_heads: the tokenizer of {reader.title} does not say which tokens stand for {word!r}"
        )
    return results


def _follows(shift: Tensor, right: int, wrong: int, heads: int) -> bool:
    """Whether the mean shift is large enough, and pairs shift the right way more often than chance has it: by the sign test, with
    Bonferroni's correction for the number of heads that are tried."""
    moved = right + wrong
    chance = sum(math.comb(moved, wins) for wins in range(right, moved + 1)) / 2**moved
    return float(shift.mean()) >= LEAST_SHIFT and right >= MIN_QUERIES and chance * heads <= LEAST_CHANCE
