"""The calculation of attention on a small example, step by step: every number, and what it came from.

`uwaga.lesson` shows it, and `uwaga.viewer.lesson` has its numbers. They are computed by `uwaga.attention`, `uwaga.attend` and
`uwaga.nn`, which also compute the models.

example      what is calculated: words, vectors, weights; parsed from a request, which is untrusted
compute      one head, and a layer with every intermediate result
matrix       matrices, and expressions of them, which give numbers and what each came from, so that a page can follow it
document     pages, sections and drawings, as data
page         a step in the making: its texts and the matrices known so far
texts        one file per language
steps        one module per part of the lesson
build        all steps in order
ledger       what is wrong with crude attention, and what has removed it, measured
question     what the reader is asked, with answers from the numbers
worksheet    the six steps on paper
"""
