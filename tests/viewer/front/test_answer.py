"""The page of a question to a soft database opens as an answer: the passages in full, in order of their shares."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from pages import Open

from uwaga import SoftDatabase, TextEncoder, store
from uwaga.viewer import ServedView
from uwaga.viewer.api import display
from uwaga.viewer.page.snapshot import save_snapshot
from uwaga.viewer.service import ViewService
from uwaga.viewer.shown import Question, View

pytestmark = pytest.mark.slow

LONG = "the cat sat on the mat .\n" * 120  # longer than a token's label
TEXTS = ["a dog ran away", LONG, "the mat", *[f"it ran from the house {'and then ' * n}" for n in range(1, 25)]]
QUESTION = "the cat sat on the mat ."


@pytest.fixture
def shown(tmp_path: Path, write_model: Callable[..., Path]) -> View:
    folder = write_model(tmp_path / "model", positions=4096)
    encoder = TextEncoder.load(folder)
    db = SoftDatabase.create(tmp_path / "db", key_width=encoder.embedding_dim, model=store.model_name(folder))
    with db:
        records = [{"text": text, "source": "/home/somebody/notes.md"} for text in TEXTS]
        db.append(torch.from_numpy(encoder.encode(TEXTS, overflow="mean")), records=records)
        return View.of_question(Question(db, QUESTION, model=str(folder)))


@pytest.fixture
def served(shown: View) -> Any:
    with display(ViewService(shown), fragment="query=0", port=0, browser=False, block=False) as view:
        yield view


def test_it_opens_on_whole_passages_in_order_of_their_shares(
    served: ServedView, shown: View, open_page: Open, tmp_path: Path
) -> None:
    """A passage is found in the text; a saved page opens so, too."""
    page = open_page(served.address)
    page.locator(".uwaga-passages li").first.wait_for()
    assert page.get_by_role("tab", name="Answer").get_attribute("aria-selected") == "true"
    assert page.locator(".uwaga-answer h2").inner_text() == QUESTION
    answer = shown.answer
    assert answer is not None
    texts = page.locator(".uwaga-answer-text").evaluate_all("all => all.map((one) => one.textContent)")
    hidden = "all => all.filter((one) => one.scrollHeight > one.clientHeight + 1).length"
    assert page.locator(".uwaga-answer-text").evaluate_all(hidden) == 0
    assert texts == [passage["text"] for passage in answer["passages"]]
    assert len(texts) == 20
    weights = shown.sides[0].maps["cross", 0].to_dense().flatten()
    shares = [passage["share"] for passage in answer["passages"]]
    assert shares == sorted(shares, reverse=True)
    assert shares == pytest.approx(weights.topk(20).values.tolist(), abs=1e-7)
    assert [TEXTS[passage["key"]] for passage in answer["passages"]] == texts
    said = page.locator(".uwaga-share b").all_inner_texts()
    assert [float(text.strip("<%")) for text in said] == pytest.approx([100 * share for share in shares], abs=0.051)
    rest = page.locator(".uwaga-answer-others").inner_text()
    assert rest.endswith(f"on {len(TEXTS) - 20} other passages")
    assert float(rest.split("%")[0].strip("<")) == pytest.approx(100 * (1 - sum(shares)), abs=0.051)
    everything = page.locator(".uwaga").inner_text()
    assert "decoder" not in everything
    assert "somebody" not in everything  # no folder of this machine
    page.locator(".uwaga-passages li .uwaga-link").nth(1).click()
    assert page.get_by_role("tab", name="Explore").get_attribute("aria-selected") == "true"
    page.locator(".uwaga-word-marked").wait_for()
    assert "decoder" not in page.locator(".uwaga-panel").inner_text()
    page.go_back()
    page.locator(".uwaga-passages li").first.wait_for()
    save_snapshot(ViewService(shown), tmp_path / "page.html")
    page = open_page((tmp_path / "page.html").as_uri())
    assert page.locator(".uwaga-answer-text").count() == 20
