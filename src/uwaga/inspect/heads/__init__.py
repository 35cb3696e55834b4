"""What the heads of a model do.

scores        previous token, duplicate token, induction
labels        a label for each head, with its evidence
table         statistics of all heads; what changed between two texts
coreference   heads that follow a pronoun to its noun
activations   the output of each head, and its gradient
gradients     gradient times attention, and rollouts weighted by it
rollout       attention rollout through the layers
norms         attention weighted by the length of the values
"""
