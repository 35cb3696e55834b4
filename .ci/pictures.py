"""Makes the documents' pictures of the explorer (`make pictures`): each shows what a command of the documents opens.

The command runs as it is written there, its page is opened in Chromium, and the address says which view. A picture keeps its command
inside (the PNG's text "command"), and a test compares it with this table and with the documents.
"""

import contextlib
import doctest
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image, PngImagePlugin

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "pictures"
TIRED = 'uwaga view "The animal didn\'t cross the street because it was too tired."'
WIDE = TIRED.replace("tired", "wide").removeprefix("uwaga view ")
SPELLER = "uwaga view transformer --model speller"
BIRDS = 'uwaga view "seven green birds sing at dawn ; the old clock stopped ; seven green birds sing" --model copyist'


class Picture(NamedTuple):
    """What a picture shows.

    command: as the documents have it.
    fragment: the view, in the page's address; "": what the page opens on.
    keys: that are pressed then.
    click: the text that is clicked last.
    """

    command: str
    fragment: str = ""
    width: int = 1280
    height: int = 800
    theme: str = "light"
    keys: str = ""
    click: str = ""


PICTURES = {
    **{
        f"explore-{width}-{theme}": Picture(TIRED, width=width, height=height, theme=theme)
        for width, height in ((1400, 900), (800, 900), (390, 844))
        for theme in ("light", "dark")
    },
    "overview": Picture(TIRED, "tab=overview"),
    "table": Picture(TIRED, "tab=table"),
    # Its head that looks at the word before; that which follows the pronoun.
    "map": Picture(TIRED, "tab=explore&map=wide&kind=encoder&layer=0&head=2&query=10"),
    "speller": Picture(SPELLER, "tab=explore&kind=cross&layer=3&head=0"),
    "why": Picture(BIRDS, "tab=explore&layer=1&head=3&query=15&key=4&merge=words", height=1180, keys="e"),
    "difference": Picture(
        f"{TIRED} --second {WIDE}", "tab=explore&kind=encoder&layer=3&head=1&side=difference&compare=difference"
    ),
    "copyist": Picture(
        "uwaga view book.txt --model copyist",
        "tab=explore&map=wide&layer=1&head=3&colour=blue,linear,0,0.1,0,nosink",
        height=900,
    ),
    "lesson": Picture("uwaga lesson", "tab=lesson&step=scores", click="pen"),
}


def write_book(folder: Path) -> None:
    """Write book.txt by the lines of the tutorial that shows it."""
    page = (ROOT / "docs" / "tutorials" / "induction-head.md").read_text(encoding="utf-8")
    block = page.partition("```python\n")[2].partition("```")[0]
    with contextlib.chdir(folder):
        exec("".join(example.source for example in doctest.DocTestParser().get_examples(block)), {})


@contextlib.contextmanager
def opened(command: str, folder: Path) -> Iterator[str]:
    """The address of the page that a command serves, while it runs in the folder."""
    arguments = [sys.executable, "-m", "uwaga.cli", *shlex.split(command)[1:], "--no-browser"]
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        arguments, stdout=subprocess.PIPE, text=True, encoding="utf-8", env=environment, cwd=folder
    ) as process:
        try:
            assert process.stdout is not None
            lines = iter(process.stdout.readline, "")
            yield next(match[0] for line in lines if (match := re.search(r"http://127\.0\.0\.1:\d+/\S+", line)))
        finally:
            process.terminate()


def settled(page: Any) -> Image.Image:
    """A screenshot once every reply has arrived and the page has looked the same for two seconds."""
    before, same = b"", 0
    for _ in range(1200):  # ten minutes, for the map of 100,000 tokens
        page.wait_for_timeout(500)
        if (
            page.locator(".uwaga-activity").inner_text()
            or not page.locator(".uwaga-panel > :not(.uwaga-loading)").count()
        ):
            continue
        shot = page.screenshot()
        same = same + 1 if shot == before else 0
        if same == 4:
            return Image.open(io.BytesIO(shot)).convert("RGB")
        before = shot
    raise SystemExit("the page does not come to rest")


def words_of(command: str) -> list[str]:
    """The texts that a command shows: its arguments without options, the name of a model, and the name of a file."""
    arguments = shlex.split(command)[2:]
    return [
        text
        for place, text in enumerate(arguments)
        if not text.startswith("--") and not text.endswith(".txt") and arguments[place - 1 : place] != ["--model"]
    ]


def take(page: Any, name: str, picture: Picture, folder: Path) -> None:
    """Saves the picture. Ends the program where the page does not show the texts of the command."""
    image = settled(page)
    shown = page.evaluate(
        "() => document.body.innerText + [...document.querySelectorAll('textarea')].map((one) => one.value).join(' ') + document.title"
    )
    for text in words_of(picture.command):
        if not set(re.findall(r"\w+", text)) <= set(re.findall(r"\w+", shown)):
            raise SystemExit(f"{name}: the page does not show {text!r}")
    inside = PngImagePlugin.PngInfo()
    inside.add_text("command", picture.command)
    # 256 colours suffice for these pages and take a third of the bytes.
    image.quantize(256).save(folder / f"{name}.png", optimize=True, pnginfo=inside)


def main(folder: Path, names: list[str]) -> None:
    """Makes these pictures, or all. Each command runs once."""
    from playwright.sync_api import sync_playwright

    wanted = {name: PICTURES[name] for name in names or PICTURES}
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    flags = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--use-gl=angle",
        "--use-angle=swiftshader",
        "--enable-unsafe-swiftshader",
    ]
    with sync_playwright() as running, tempfile.TemporaryDirectory() as working:
        write_book(Path(working))
        browser = running.chromium.launch(executable_path=path, args=flags)
        for command in dict.fromkeys(picture.command for picture in wanted.values()):
            with opened(command, Path(working)) as address:
                context = browser.new_context()  # the code in the address is for the first browser
                context.new_page().goto(address)
                page = context.pages[0]
                page.locator(".uwaga-header").wait_for()
                home = address.partition("#")[0]
                for name, picture in wanted.items():
                    if picture.command == command:
                        page = context.new_page()
                        page.set_viewport_size({"width": picture.width, "height": picture.height})
                        page.emulate_media(color_scheme=picture.theme)
                        page.goto(f"{home}#{picture.fragment}" if picture.fragment else home)
                        if picture.keys:
                            page.locator(".uwaga-headline", has_text="%").wait_for()
                        for key in picture.keys:
                            page.keyboard.press(key)
                        if picture.click:
                            page.get_by_text(picture.click, exact=True).first.click()
                        take(page, name, picture, folder)
                        sys.stdout.write(f"{folder / name}.png\n")
                context.close()
        browser.close()


if __name__ == "__main__":
    main(FOLDER, sys.argv[1:])
