"""Find heads that follow pronouns: their weight moves if a word changes that decides what a pronoun refers to.

The sentences are pairs as in Levesque et al., "The Winograd Schema Challenge" (2012): they differ in one word, and so in the referent of the
pronoun. Clark et al., "What Does BERT Look At?" (2019, section 4.3), found such heads of BERT with annotated text. Here a change of weight
is measured, which a preference for subjects or near nouns cannot cause.

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
MOVES = 0.05  # the least shift of a pair that counts as right; a shift of at most -MOVES is wrong
LEAST_CHANCE = 0.05  # the level of the sign test, over all heads of the model


def _place(text: str, word: str) -> tuple[int, int]:
    """Return the characters [start, end) of the first occurrence of a whole word."""
    import regex

    match = regex.search(rf"(?<!\w){regex.escape(word)}(?!\w)", text)
    if match is None:
        raise ValueError(f"WinogradPair: there is no word {word!r} in {text!r}")
    return match.span()


@dataclass(frozen=True, slots=True)
class WinogradPair:
    """Hold two sentences that differ in one word, and so in the referent of a pronoun.

    text: the sentence with {} in place of the words.
    words: with the first word the pronoun refers to the first candidate, with the second word to the second.
    pronoun, candidates: words of the text; the first occurrence counts.

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
    """Measure how far each head follows the referent of a pronoun, over pairs of sentences.

    Let a_t(c) be the weight of the pronoun on the tokens of candidate c in sentence t, the mean over the pronoun's tokens. The shift of a
    pair is ((a_1(c_1) - a_1(c_2)) - (a_2(c_1) - a_2(c_2))) / 2: 1 if all weight is on the referent, 0 if the changed word changes nothing.
    A head is labelled "coreference" if the mean shift is at least 0.03, at least five pairs shift by 0.05 or more, and a sign test of right
    against wrong shifts is significant at 0.05, with Bonferroni's correction for the number of heads. In a decoder, a pronoun does not see
    the words after it, so no shift is possible. All sentences are one ragged batch. In an encoder-decoder, the encoder's heads are measured.

    Args:
        model: a bundled model, a directory, a model id of the Hugging Face Hub, or a model that `uwaga.models.open` returned.
        pairs: pairs of sentences in the model's language; `PAIRS` are English.

    Returns:
        Columns kind, layer, head, label, shift (the mean), right and wrong (the numbers of pairs that shift by 0.05 or more), of (all pairs).

    Raises:
        ValueError: no pairs; a model that cannot be read (CheckpointError) or takes fewer tokens than a sentence has; a tokenizer without the
            characters of tokens (RecordError).
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
    """Compute the shifts (pairs, H) of each layer, from one ragged batch."""
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
    """Return the tokens of a word."""
    first, stop = _place(text, word)
    results = [at for at, (start, end) in enumerate(offsets) if start < stop and end > first and end > start]
    if not results:
        raise RecordError(f"coreference_heads: the tokenizer of {reader.title} does not report the tokens of {word!r}")
    return results


def _follows(shift: Tensor, right: int, wrong: int, heads: int) -> bool:
    """Return whether the mean shift is large enough and significant by a sign test, corrected for the number of heads."""
    moved = right + wrong
    chance = sum(math.comb(moved, wins) for wins in range(right, moved + 1)) / 2**moved
    return float(shift.mean()) >= LEAST_SHIFT and right >= MIN_QUERIES and chance * heads <= LEAST_CHANCE
