"""The data of a training run: files to tokens, once; then batches, each a pure function of (seed, epoch, step).

Start with corpus.py: `Corpus.prepare(config, folder)` gives two `Split`s, and `Split.micro_batches(step)` the micro-batches of a
step.

    sources     files by the names of their official sources, downloaded on request
    splits      documents and pairs of the files, and which of them are for validation
    tokenizers  the tokenizers of a run: trained on the data, or loaded
    prepare     texts to token files, in a folder named by a hash
    store       these files, read as memory maps
    rows        the rows of a model, and their order in an epoch
    batch       what a model is given
"""
