"""Data of a training: files to tokens, once; then batches, each a pure function of (seed, epoch, step).

Start with corpus.py: `Corpus.prepare(config, folder)` gives two `Split`s, and `Split.step(step)` the micro-batches of a step.

    pairs                       pairs of a source and a target in files; documents are read by uwaga.models.text.corpus
    sides                       which of it is for validation
    tokenizers, encoding        texts to ids
    prepare, fingerprint, store kept in files, read as memory maps
    rows, order, counter        rows of a model, and the order of an epoch
    batch, answers              what training is given, and what evaluation of pairs asks
"""

from uwaga._base.lazy import names

__all__ = ["Batch", "Corpus", "Micro", "Question", "Split"]

_HOME = {
    "Batch": "uwaga.train.data.batch",
    "Corpus": "uwaga.train.data.corpus",
    "Micro": "uwaga.train.data.batch",
    "Question": "uwaga.train.data.answers",
    "Split": "uwaga.train.data.corpus",
}

__getattr__, __dir__ = names(__name__, _HOME)
