"""Measure the heads of a model.

scores        previous-token, duplicate-token and induction scores
labels        a label for each head, with its evidence
table         statistics of all heads, and their changes between two recordings
coreference   heads that follow a pronoun to its noun
activations   the output of each head, and its gradient
gradients     gradient times attention, and its rollout
rollout       attention rollout through the layers
norms         norm-weighted attention
"""
