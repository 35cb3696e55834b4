"""A browser, and pages of the explorer in it. Without a browser these tests are skipped.

An error or warning in the console of a page, or a request to another server than its own, fails the test.
"""

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import torch
from factories import factory
from waiting import HANG

import uwaga
from uwaga.viewer import Maps, ServedView, view

playwright = pytest.importorskip("playwright.sync_api", reason="there is no playwright")

_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
_PLAIN = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
_WEBGL = ["--use-gl=angle", "--use-angle=swiftshader", "--enable-unsafe-swiftshader"]

TOKENS = ["[CLS]", "un", "##seen", "the", "cat", "sat", "on", "the", "mat", ".", "[SEP]"]

Page = Any  # of playwright, which is not installed where types are checked

_started: list[Any] = []  # the browser that runs
_to_close = ExitStack()


@pytest.fixture(scope="module")
def browser() -> Any:
    """Chromium with WebGL2 in software, for all files of this folder that follow each other."""
    if not _started:
        _path()  # where there is none, nothing is to be closed
        running = _to_close.enter_context(playwright.sync_playwright())
        _started.append(running.chromium.launch(executable_path=_path(), args=[*_PLAIN, *_WEBGL]))
        _to_close.callback(_started[0].close)
    return _started[0]


@pytest.fixture(scope="module")
def browser_with_bars(browser: Any) -> Iterator[Any]:
    """Another one, with scroll bars, which take their width from the page."""
    options = {"executable_path": _path(), "args": [*_PLAIN, *_WEBGL], "ignore_default_args": ["--hide-scrollbars"]}
    started = browser.browser_type.launch(**options)
    yield started
    started.close()


def _close() -> None:
    _started.clear()
    _to_close.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> Iterator[None]:
    """Close the browser before a test elsewhere, after the pages: while it runs, no other test can run an event loop of its own."""
    try:
        yield
    finally:  # also if a page had an error
        if nextitem is None or Path(__file__).parent not in nextitem.path.parents:
            _close()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish() -> None:
    """Close the browser of a session that ends at its first failure."""
    _close()


def _path() -> str:
    path = next(filter(None, map(shutil.which, _BROWSERS)), None)
    if path is None:
        pytest.skip("there is no Chromium")
    return path


@pytest.fixture
def open_page(browser: Any) -> Iterator[Callable[..., Page]]:
    """Opens an address in a new context; further options are those of playwright's `new_context`."""
    contexts: list[Any] = []
    wrong: list[str] = []

    def open_one(address: str, *, width: int = 1280, height: int = 800, **options: Any) -> Page:
        context = browser.new_context(viewport={"width": width, "height": height}, **options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(1000 * HANG)

        def read(message: Any) -> None:
            # The software GL warns about screenshots, since they read its pixels.
            if message.type in ("error", "warning") and "GL Driver Message" not in message.text:
                wrong.append(f"console: {message.text}")

        page.on("console", read)
        page.on("pageerror", lambda error: wrong.append(f"error: {error}"))
        home = urlsplit(address).netloc

        def check(request: Any) -> None:
            where = urlsplit(request.url)
            if where.scheme not in ("data", "blob") and where.netloc != home:
                wrong.append(f"a request to {request.url}")

        page.on("request", check)
        page.goto(address)
        return page

    yield open_one
    for context in contexts:
        context.close()
    assert not wrong, wrong


@pytest.fixture
def serve() -> Iterator[Callable[..., ServedView]]:
    """Calls `uwaga.view` without opening a browser; the view is closed at the end of the test."""
    with ExitStack() as stack:

        def serve_one(shown: Any, beside: Any = None, **options: Any) -> ServedView:
            of_maps = {name: options.pop(name) for name in ("tokens", "picture", "grid") if name in options}
            handle = view(Maps(shown, **of_maps) if of_maps else shown, beside, browser=False, block=False, **options)
            assert isinstance(handle, ServedView)
            return stack.enter_context(handle)

        yield serve_one


@factory
def make_maps(tokens: int, layers: int = 2, heads: int = 3, kind: str = "encoder", width: int = 64) -> Any:
    """Makes random maps: (kind, layer) to an AttentionMap of shape (1, heads, tokens, tokens)."""
    torch.manual_seed(0)
    mask = uwaga.Causal() if kind == "decoder" else None
    shape = (1, heads, tokens, width)
    # Queries of norm 1.5 sqrt(width), so that weights differ visibly.
    return {
        (kind, layer): uwaga.AttentionMap(1.5 * torch.randn(shape), torch.randn(shape), mask=mask)
        for layer in range(layers)
    }
