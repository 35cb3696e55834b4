"""Where a model's attention is, and how it is told of.

own         the layers of this package
foreign     those of transformers
drafts      which of their generations read more than they write
"""
