"""The browser that Python finds on this machine."""

import threading
import webbrowser

import pytest


class Browser:
    """One that opens nothing. basename: "" where there is no browser."""

    def __init__(self) -> None:
        self.basename, self.opened = "firefox", threading.Event()

    def get(self) -> "Browser":
        if not self.basename:
            raise webbrowser.Error("could not locate runnable browser")
        return self

    def open(self, address: str) -> bool:
        self.address = address
        self.opened.set()
        return True


@pytest.fixture
def default_browser(monkeypatch: pytest.MonkeyPatch) -> Browser:
    result = Browser()
    monkeypatch.setattr(webbrowser, "get", result.get)
    return result
