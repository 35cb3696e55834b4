"""Data of a training: files to tokens, once; then batches, each a pure function of (seed, epoch, step).

Start with corpus.py: `Corpus.prepare(config, folder)` gives two `Split`s, and `Split.step(step)` the micro-batches of a step.
"""
