"""What the page says that a word looks at, for every word and head of 21 texts: judged from the exact weights by a rule of its own."""

import itertools
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from asking import complete, runner_of
from numpy.typing import NDArray

from uwaga._base.languages import LANGUAGES, decimal, integer, page_table, tr, using
from uwaga.models.tokenizers.token_text import word_ranges
from uwaga.viewer.service import ViewService
from uwaga.viewer.texts import RunRequest

pytestmark = pytest.mark.slow

FRONT = Path(__file__).parents[2] / "src" / "uwaga" / "viewer" / "front"
DEFAULT = "The animal didn't cross the street because it was too tired."
TEXTS = (
    DEFAULT,
    "The animal didn't cross the street because it was too wide.",
    "The dog didn't drink the water because it was too cold.",
    "She said that she would come tomorrow.",
    "Time flies like an arrow; fruit flies like a banana.",
    "To be, or not to be, that is the question.",
    "hello",
    "No!",
    "the the the the the",
    "1 + 1 = 2, 3.14 and 1,000,000",
    "Colorless green ideas sleep furiously",
    "Uncharacteristically, antidisestablishmentarianism bewildered him.",
    "Zażółć gęślą jaźń",
    "O rato roeu a roupa do rei de Roma.",
    "This is a pen. これはペンです。",
    "他太累了没有过马路。",
    "I \N{HEAVY BLACK HEART} New York \N{OWL}",
    "A\nline, and another\n\none",
    "Buffalo buffalo Buffalo buffalo buffalo buffalo Buffalo buffalo",
    "We hold these truths to be self-evident, that all men are created equal",
    "It was the best of times, it was the worst of times, it was the age of wisdom",
)
# The sentence of the page for every word and head, in plain text.
SAY = """
import { readFileSync } from "node:fs";
class Text {
  textContent = "";
  setAttribute() {}
  append(...parts) { for (const part of parts) this.textContent += typeof part === "string" ? part : part.textContent; }
}
const given = JSON.parse(readFileSync(0));
globalThis.uwagaLanguage = given.table;
globalThis.document = { createElement: () => new Text() };
const { headlineOf } = await import(`${given.front}/explore/headline.js`);
const { hiddenOutside, seenKeys, sinksOf } = await import(`${given.front}/weights.js`);
console.log(JSON.stringify(given.texts.map(({ items: { labels, specials, spans }, heads, kind, layer, sees }) => {
  const items = { labels, specials: new Set(specials), spans, total: labels.length, noSpaceBefore: [] };
  const app = { store: { get: () => ({ kind, layer }) }, side: () => ({ maps: [{ kind, layer, sees }] }) };
  return heads.map((head) => head.map((weights, query) => headlineOf({ queries: items, keys: items }, query, null, Float32Array.from(weights), { sinks: sinksOf(items, kind), signed: false,
    strongest: undefined, isCounted: false, isHidden: hiddenOutside(seenKeys(app, items, items, query)) }).map((part) => typeof part === "string" ? part : part.textContent).join("")));
})));
"""


class Layer(NamedTuple):
    """A layer of a text: what the page gets of it, and the exact weights (H, W, W) between its words."""

    page: dict[str, Any]
    exact: NDArray[np.float64]


def cells_of(service: ViewService, where: dict[str, Any]) -> NDArray[np.float32]:
    """The small maps of a layer, as the page follows them until they are complete."""
    return np.asarray(complete(service, request="overview", pooling="sum", **where).arrays[0])


# The model, one of how many texts is read, and how many sentences that makes.
READ = {"minilm": ("minilm", 1, 16488), "tenth": ("minilm", 10, 3096), "copyist": ("copyist", 1, 1520)}


@pytest.fixture(scope="module", params=READ.values(), ids=READ)
def layers(request: pytest.FixtureRequest) -> list[Layer]:
    model, step, pairs = request.param
    runner = runner_of(model)
    results: list[Layer] = []
    for text in TEXTS[::step]:
        view = runner.run(RunRequest(text))
        service, side = ViewService(view, runner=runner), view.sides[0]
        (stack,) = side.stacks
        plain = {"merge": "words", "specials": "show"}
        reply = service.answer({"request": "items", "side": "0", "stack": stack, "first": 0, "count": 1000, **plain})
        words = word_ranges(side.token_text(stack))
        items = {name: reply.meta[name] for name in ("labels", "specials")} | {
            "spans": reply.arrays[0].ravel().tolist()
        }
        for layer_map in service.answer({"request": "about"}).meta["sides"][0]["maps"]:
            where = {"side": "0", "kind": layer_map["kind"], "layer": layer_map["layer"], **plain}
            page = {"items": items, "heads": cells_of(service, where).tolist(), "sees": layer_map["sees"], **where}
            whole = np.asarray(side.maps[layer_map["kind"], layer_map["layer"]][:], np.float64)
            sums = np.stack([whole[..., start:stop].sum(-1) for start, stop in words], -1)
            results.append(Layer(page, np.stack([sums[:, start:stop].mean(1) for start, stop in words], 1)))
    assert sum(len(layer.exact) * layer.exact.shape[1] for layer in results) == pairs
    return results


def shares(share: float) -> set[str]:
    """A share as it may be written: rounded to a tenth, up to the rounding of float32."""
    results = set()
    for near in (share * (1 - 1e-6), share * (1 + 1e-6)):
        percent = 100 * min(near, 1.0)
        if percent < 0.05:
            results.add("0%" if percent == 0 else f"<{decimal(0.1, 1)}%")
        elif percent >= 99.95:
            results |= {"100%", f">{decimal(99.9, 1)}%"}
        else:
            tenth = decimal(percent, 1)
            results.add(f"{tenth.removesuffix(tenth[-2:]) if tenth.endswith('0') else tenth}%")
    return results


def right_sentences(layer: Layer, head: int, query: int) -> set[str]:
    """What may be said of a word in a head, in the current language."""
    labels, specials = layer.page["items"]["labels"], set(layer.page["items"]["specials"])
    names = [label.removeprefix("[").removesuffix("]") if at in specials else label for at, label in enumerate(labels)]
    names = [name.replace("\n", "\N{DOWNWARDS ARROW WITH CORNER LEFTWARDS}") for name in names]
    is_causal = layer.page["kind"] == "decoder"
    row = layer.exact[head, query, : query + 1 if is_causal else None]
    if is_causal:
        assert not layer.exact[head, query, query + 1 :].any()
    largest = float(row.max())

    def filled(message: str, *numbers: float, **values: str) -> set[str]:
        slots = [name for name in ("weight", "largest") if f"{{{name}}}" in message]
        chosen = itertools.product(*(shares(number) for number in numbers))
        return {
            tr(message, **{"from": names[query]}, **values, **dict(zip(slots, texts, strict=True))) for texts in chosen
        }

    results = set()
    for top in np.flatnonzero(row >= largest * (1 - 1e-6)).tolist():
        rests = top in specials or (is_causal and top == 0 and len(labels) > 1)
        if largest <= 0.5 and len(row) > 1 and largest * len(row) <= 1.5 and float(row.min()) * len(row) >= 1 / 1.5:
            results |= filled(
                "{from} spreads evenly over {count}: at most {weight} each", largest, count=integer(len(row))
            )
        elif not rests:
            text = "{from} looks mostly at {to}: {weight}" if largest > 0.5 else "{from} looks most at {to}: {weight}"
            results |= filled(text, largest, to=names[top])
        else:
            others = [at for at in range(len(row)) if at != top and at not in specials and row[at] > 0]
            if not others:
                results |= filled("{from} rests on {to}: {weight}", largest, to=names[top])
                continue
            share = float(row[others].max())
            text = "{from} rests on {to}: {weight}; of the words, most on {most}: {largest}"
            if top not in specials:
                text = "{from} rests on {to}: {weight}; of the other words, most on {most}: {largest}"
            for most in (at for at in others if row[at] >= share * (1 - 1e-6)):
                results |= filled(text, largest, share, to=names[top], most=names[most])
    return results


@pytest.mark.gate(only=lambda layers, language: (layers, language) in ((READ["copyist"], "en"), (READ["tenth"], "pl")))
@pytest.mark.parametrize("language", LANGUAGES)
def test_no_sentence_of_what_a_word_looks_at_is_false(layers: list[Layer], language: str, tmp_path: Path) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("there is no node")
    (tmp_path / "say.mjs").write_text(SAY, encoding="utf-8")
    sent = {"front": FRONT.as_uri(), "table": page_table(language), "texts": [layer.page for layer in layers]}
    done = subprocess.run(
        [node, tmp_path / "say.mjs"], input=json.dumps(sent).encode(), capture_output=True, check=True
    )
    said = json.loads(done.stdout)
    false = []
    with using(language):
        for layer, heads in zip(layers, said, strict=True):
            for head, query in np.ndindex(layer.exact.shape[:2]):
                if heads[head][query] not in (right := right_sentences(layer, head, query)):
                    false.append((heads[head][query], sorted(right)))
    assert not false, (len(false), false[:5])
